-- The newest epoch of a channel that a server has told of: one that goes back is not believed. It outlives a leave.
CREATE TABLE channel_epochs (channel_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL CHECK (epoch > 0)) WITHOUT ROWID;

-- To whom the key of an epoch is not sent again before a time: it could not be sent, or the subscriber has to say first
-- that it came (then without a code).
CREATE TABLE channel_unreached (
  channel_id TEXT NOT NULL, epoch INTEGER NOT NULL, nhi TEXT NOT NULL,
  failures INTEGER NOT NULL, next_try TEXT NOT NULL, code TEXT, reason TEXT,
  PRIMARY KEY (channel_id, epoch, nhi)
) WITHOUT ROWID;
