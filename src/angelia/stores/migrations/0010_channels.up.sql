-- channels: topics with a policy, who listens, and what was published.
CREATE TABLE channels (
  channel_id UUID PRIMARY KEY,
  owner_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  channel_name VARCHAR(64) COLLATE "C" NOT NULL,
  policy TEXT NOT NULL CHECK (policy IN ('open', 'private', 'authz_required', 'allowlist')),
  retention_seconds INTEGER NOT NULL DEFAULT 604800,
  max_message_size_bytes INTEGER NOT NULL DEFAULT 1048576,
  max_subscribers INTEGER NOT NULL DEFAULT 10000,
  epoch BIGINT NOT NULL DEFAULT 0,
  epoch_key_id UUID,                       -- NULL: nothing is published before somebody sets the next key
  epoch_at TIMESTAMPTZ,
  left_at TIMESTAMPTZ,                     -- the last time that somebody left who has the present key
  recheck_after VARCHAR(255) COLLATE "C",  -- how far the check of all subscribers has come; NULL: none is due
  first_offset BIGINT NOT NULL DEFAULT 1,
  next_offset BIGINT NOT NULL DEFAULT 1,
  total_messages BIGINT NOT NULL DEFAULT 0,
  total_subscribers INTEGER NOT NULL DEFAULT 0,
  created_at TIMESTAMPTZ NOT NULL,
  updated_at TIMESTAMPTZ NOT NULL,
  UNIQUE (owner_nhi, channel_name),
  CHECK (first_offset BETWEEN 1 AND next_offset),
  CHECK (total_subscribers >= 0)
);
-- Those that anybody may find.
CREATE INDEX idx_channels_found ON channels (created_at, channel_id) WHERE policy IN ('open', 'authz_required');
CREATE INDEX idx_channels_recheck ON channels (channel_id) WHERE recheck_after IS NOT NULL;

CREATE TABLE channel_allowlist (
  channel_id UUID NOT NULL,
  nhi VARCHAR(255) COLLATE "C" NOT NULL,
  may_subscribe BOOLEAN NOT NULL DEFAULT true,
  may_publish BOOLEAN NOT NULL DEFAULT false,
  added_at TIMESTAMPTZ NOT NULL,
  PRIMARY KEY (channel_id, nhi)
);
CREATE INDEX idx_channel_allowlist_nhi ON channel_allowlist (nhi);

CREATE TABLE channel_subscriptions (
  subscription_id UUID PRIMARY KEY,
  channel_id UUID NOT NULL,
  subscriber_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  status TEXT NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused', 'deleted')),
  last_offset BIGINT NOT NULL DEFAULT 0 CHECK (last_offset >= 0),
  last_consumed_at TIMESTAMPTZ,
  key_epoch BIGINT NOT NULL DEFAULT 0,     -- the newest epoch whose key was sent to the subscriber
  asked_at TIMESTAMPTZ,                    -- when the subscriber last said that it has no key
  created_at TIMESTAMPTZ NOT NULL,
  updated_at TIMESTAMPTZ NOT NULL,
  UNIQUE (channel_id, subscriber_nhi)
);
CREATE INDEX idx_subscriptions_subscriber ON channel_subscriptions (subscriber_nhi);
-- Who lacks the present key.
CREATE INDEX idx_subscriptions_key ON channel_subscriptions (channel_id, key_epoch) WHERE status <> 'deleted';

CREATE TABLE channel_messages (
  channel_id UUID NOT NULL,
  channel_offset BIGINT NOT NULL CHECK (channel_offset > 0),
  sender_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  message_id UUID NOT NULL,
  replay_key BYTEA NOT NULL CHECK (octet_length(replay_key) = 32),
  epoch_key_id UUID NOT NULL,
  created_at TIMESTAMPTZ NOT NULL,
  accepted_at TIMESTAMPTZ NOT NULL,
  expires_at TIMESTAMPTZ NOT NULL,         -- when it leaves: its own time, or the channel's retention
  correlation_id UUID,
  wire BYTEA NOT NULL,
  PRIMARY KEY (channel_id, channel_offset),
  UNIQUE (channel_id, sender_nhi, message_id)
);
CREATE INDEX idx_channel_messages_expires ON channel_messages (expires_at);

-- Channels that are gone, whose rows go in small batches.
CREATE TABLE channel_remains (
  channel_id UUID PRIMARY KEY,
  deleted_at TIMESTAMPTZ NOT NULL
);
