-- The pinned roster of a channel: its version never goes back, and one name stands for one channel. It stays after the
-- agent leaves. Keys that were made under a roster before `keys_since`, or of another signing pair, seal nothing. A
-- `forgotten` roster does not bind the channel to its owner; for the same owner its version still does not go back.
CREATE TABLE channel_rosters (
  channel_id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, owner_nhi TEXT NOT NULL,
  signer_id TEXT NOT NULL, policy TEXT NOT NULL, version INTEGER NOT NULL CHECK (version > 0),
  keys_since INTEGER NOT NULL, roster BLOB NOT NULL,
  forgotten INTEGER NOT NULL DEFAULT FALSE, pinned_at TEXT NOT NULL
);
CREATE INDEX idx_channel_rosters_owner ON channel_rosters(owner_nhi);

-- Keys that only open: their channel was forgotten, or a thief may have them.
ALTER TABLE channel_keys ADD COLUMN spent INTEGER NOT NULL DEFAULT FALSE;
-- The roster under which a key was made, as its publisher says; NULL if no publisher brought the key, which then only
-- opens.
ALTER TABLE channel_keys ADD COLUMN roster_version INTEGER DEFAULT 0;
ALTER TABLE channel_keys ADD COLUMN roster_signer TEXT;
