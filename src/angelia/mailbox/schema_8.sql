-- Editions of groups, each signed by the admin that made it: those that led to the newest one, and those that may hold
-- once others come. One from before editions were signed has no signature.
CREATE TABLE log_editions (
  group_id TEXT NOT NULL, digest BLOB NOT NULL, -- empty for one that was here before
  edition BLOB NOT NULL, signature BLOB NOT NULL,
  sender_nhi TEXT NOT NULL, received_at TEXT NOT NULL,
  PRIMARY KEY (group_id, digest)
) WITHOUT ROWID;
INSERT INTO log_editions SELECT group_id, x'', edition, x'', sender_nhi, joined_at FROM logs;

-- The groups of group logs that this agent is a member of. `base` is the earliest edition that is known, `newest` the one
-- that holds. From `settle_at` on nodes and members are brought to it by this agent, an admin; NULL if they all were.
CREATE TABLE joined_logs (
  group_id TEXT PRIMARY KEY,               -- base58
  name TEXT NOT NULL, base BLOB NOT NULL, newest BLOB NOT NULL, joined_at TEXT NOT NULL, settle_at TEXT
) WITHOUT ROWID;
INSERT INTO joined_logs SELECT group_id, name, x'', x'', joined_at, CASE untold WHEN 0 THEN NULL ELSE joined_at END FROM logs;
DROP TABLE logs;
ALTER TABLE joined_logs RENAME TO logs;
CREATE INDEX idx_logs_name ON logs(name);

-- The members that this agent, an admin, has yet to send the newest edition: `told` is the digest of the last one that
-- they have; NULL if they have none.
CREATE TABLE log_untold (
  group_id TEXT NOT NULL, handle TEXT NOT NULL, told BLOB, PRIMARY KEY (group_id, handle)
) WITHOUT ROWID;

-- The keys of group logs: two admins who change a group at once make two of one epoch. A key is `proven` if it came with
-- an edition that held at some time; others may go with theirs. Messages of earlier epochs stay on nodes until a snapshot
-- replaces them.
CREATE TABLE epoch_keys (
  row_id TEXT PRIMARY KEY,                 -- group_id/epoch/key_id; without the last for one from before editions named it
  group_id TEXT NOT NULL, epoch INTEGER NOT NULL CHECK (epoch > 0),
  key_id TEXT,
  proven INTEGER NOT NULL,
  secret_nonce BLOB NOT NULL CHECK (length(secret_nonce) = 12),
  secret BLOB NOT NULL,                    -- 32 bytes under the local key, AAD 'log_keys' 00 row_id
  received_at TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO epoch_keys
SELECT group_id || '/' || epoch, group_id, epoch, NULL, TRUE, secret_nonce, secret, received_at FROM log_keys;
-- The same rows are in the table that takes its place, still encrypted.
DROP TABLE log_keys;
ALTER TABLE epoch_keys RENAME TO log_keys;
CREATE INDEX idx_log_keys_epoch ON log_keys(group_id, epoch);
