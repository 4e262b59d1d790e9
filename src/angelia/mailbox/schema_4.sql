-- The newest epoch of a channel that a server reported: an earlier one is refused. It stays after the agent leaves.
CREATE TABLE channel_epochs (channel_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL CHECK (epoch > 0)) WITHOUT ROWID;

-- Subscribers that are not sent the key of an epoch before `next_try`: sending failed, or (without a code) the subscriber
-- has not confirmed it yet.
CREATE TABLE channel_unreached (
  channel_id TEXT NOT NULL, epoch INTEGER NOT NULL, nhi TEXT NOT NULL,
  failures INTEGER NOT NULL, next_try TEXT NOT NULL, code TEXT, reason TEXT,
  PRIMARY KEY (channel_id, epoch, nhi)
) WITHOUT ROWID;
