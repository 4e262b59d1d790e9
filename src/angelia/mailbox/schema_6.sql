-- The roster of a channel that was believed last: its version never goes back, and one name stands for one channel. It
-- outlives a leave. Keys whose makers had a roster before `keys_since`, or of another pair, seal nothing any more. One that is
-- `forgotten` says no more whose the channel is; if it is the same one's after all, its version still does not go back.
CREATE TABLE channel_rosters (
  channel_id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, owner_nhi TEXT NOT NULL,
  signer_id TEXT NOT NULL, policy TEXT NOT NULL, version INTEGER NOT NULL CHECK (version > 0),
  keys_since INTEGER NOT NULL, roster BLOB NOT NULL,
  forgotten INTEGER NOT NULL DEFAULT FALSE, pinned_at TEXT NOT NULL
);
CREATE INDEX idx_channel_rosters_owner ON channel_rosters(owner_nhi);

-- Keys that open and never seal again: their channel was forgotten, or a thief may have them.
ALTER TABLE channel_keys ADD COLUMN spent INTEGER NOT NULL DEFAULT FALSE;
-- The roster that the maker of a key had, by a publisher's word; NULL where no publisher brought the key: it only opens.
ALTER TABLE channel_keys ADD COLUMN roster_version INTEGER DEFAULT 0;
ALTER TABLE channel_keys ADD COLUMN roster_signer TEXT;
