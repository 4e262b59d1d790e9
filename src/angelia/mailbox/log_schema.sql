-- One group of the group log, as this device has it. An application keeps its state in tables of its own beside these, so
-- that state and vector change together.
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- What was applied: of each sender all up to `confirmed`, and closed ranges above that.
CREATE TABLE log_received (sender BLOB PRIMARY KEY, confirmed INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE log_ranges (
  sender BLOB NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL CHECK (last >= first),
  PRIMARY KEY (sender, first)
) WITHOUT ROWID;

-- Messages of this agent, sealed, until enough nodes have them. A snapshot that is cut into shards has its manifest here.
CREATE TABLE log_own (
  seq INTEGER PRIMARY KEY, level INTEGER NOT NULL, ciphertext BLOB NOT NULL, manifest BLOB NOT NULL,
  watermark BLOB NOT NULL
);

-- Snapshots that were applied or made here, and are not replaced by one of a higher level.
CREATE TABLE log_snapshots (
  sender BLOB NOT NULL, seq INTEGER NOT NULL, level INTEGER NOT NULL CHECK (level > 0), watermark BLOB NOT NULL,
  PRIMARY KEY (sender, seq)
) WITHOUT ROWID;

-- Completions made here that not all nodes have carried out yet.
CREATE TABLE log_completions (
  level INTEGER NOT NULL, seq INTEGER NOT NULL, document BLOB NOT NULL, made_at TEXT NOT NULL,
  PRIMARY KEY (level, seq)
) WITHOUT ROWID;
CREATE TABLE log_completed_by (
  level INTEGER NOT NULL, seq INTEGER NOT NULL, node BLOB NOT NULL,
  PRIMARY KEY (level, seq, node)
) WITHOUT ROWID;
