-- channels: who holds a key without listening, which keys a channel has had, and under which rules it was last checked.
-- contract: the check only gains a state, which the release before never writes.
ALTER TABLE channel_subscriptions DROP CONSTRAINT channel_subscriptions_status_check;
ALTER TABLE channel_subscriptions ADD CONSTRAINT channel_subscriptions_status_check
  CHECK (status IN ('active', 'paused', 'publishing', 'deleted'));
-- When the subscriber last said that it has the key; what it asked for before is settled by that.
ALTER TABLE channel_subscriptions ADD COLUMN confirmed_at TIMESTAMPTZ;

-- The rules under which the members of a channel were last looked at; only where rules decide.
ALTER TABLE channels ADD COLUMN rules_version BIGINT NOT NULL DEFAULT 0;
CREATE INDEX idx_channels_rules ON channels (rules_version, channel_id) WHERE policy = 'authz_required';

-- The ids of a channel's keys, as long as something under them may be read.
CREATE TABLE channel_epochs (
  channel_id UUID NOT NULL,
  epoch BIGINT NOT NULL CHECK (epoch > 0),
  key_id UUID NOT NULL,
  made_by VARCHAR(255) COLLATE "C",        -- NULL: not known, the key is older than this table
  made_at TIMESTAMPTZ NOT NULL,
  replaced_at TIMESTAMPTZ,                 -- when the next key was named
  PRIMARY KEY (channel_id, epoch)
);
CREATE INDEX idx_channel_epochs_replaced ON channel_epochs (replaced_at) WHERE replaced_at IS NOT NULL;
INSERT INTO channel_epochs (channel_id, epoch, key_id, made_at)
SELECT channel_id, epoch, epoch_key_id, epoch_at FROM channels
WHERE epoch > 0 AND epoch_key_id IS NOT NULL AND epoch_at IS NOT NULL;
