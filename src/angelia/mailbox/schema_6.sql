-- The roster of a channel that was believed last: its version never goes back, and one name stands for one channel. It
-- outlives a leave. Keys up to the epoch `keys_after` seal nothing any more: somebody has them who is off the roster.
CREATE TABLE channel_rosters (
  channel_id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, owner_nhi TEXT NOT NULL,
  signer_id TEXT NOT NULL, version INTEGER NOT NULL CHECK (version > 0), keys_after INTEGER NOT NULL, roster BLOB NOT NULL,
  pinned_at TEXT NOT NULL
);
CREATE INDEX idx_channel_rosters_owner ON channel_rosters(owner_nhi);

-- Who was a publisher on a roster before: the keys that it made still open what others published under them.
CREATE TABLE channel_former_publishers (
  channel_id TEXT NOT NULL, nhi TEXT NOT NULL, PRIMARY KEY (channel_id, nhi)
) WITHOUT ROWID;

-- Keys that open and never seal: those of a channel that was forgotten.
ALTER TABLE channel_keys ADD COLUMN spent INTEGER NOT NULL DEFAULT FALSE;
