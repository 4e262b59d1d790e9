-- The roster of a channel that was believed last: its version never goes back, and one name stands for one channel. It
-- outlives a leave. Keys up to the epoch `keys_after` seal nothing any more: somebody has them who is off the roster; nor
-- do those whose makers had a roster before the version `keys_since`, or have one that is not known here.
CREATE TABLE channel_rosters (
  channel_id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, owner_nhi TEXT NOT NULL,
  signer_id TEXT NOT NULL, version INTEGER NOT NULL CHECK (version > 0), keys_after INTEGER NOT NULL,
  keys_since INTEGER NOT NULL, roster BLOB NOT NULL,
  pinned_at TEXT NOT NULL
);
CREATE INDEX idx_channel_rosters_owner ON channel_rosters(owner_nhi);

-- Keys that open and never seal: no publisher brought them, or their channel was forgotten.
ALTER TABLE channel_keys ADD COLUMN spent INTEGER NOT NULL DEFAULT FALSE;
-- The roster by which its maker gave a key out.
ALTER TABLE channel_keys ADD COLUMN roster_version INTEGER NOT NULL DEFAULT 0;
