-- Each edition of a group comes from its owner, with the fingerprint of the pair that signed its mail; empty for one that was
-- made here. From `settle_at` on, nodes and members are brought to the newest edition by this agent, its owner; NULL if they
-- all were.
ALTER TABLE logs ADD COLUMN sender_fp TEXT NOT NULL DEFAULT '';
ALTER TABLE logs ADD COLUMN settle_at TEXT;
UPDATE logs SET settle_at = joined_at WHERE untold;
ALTER TABLE logs DROP COLUMN untold;

-- The members that this agent, the owner, has yet to send the newest edition, with the last epoch whose key they have.
CREATE TABLE log_untold (
  group_id TEXT NOT NULL, sender BLOB NOT NULL, epoch INTEGER NOT NULL, PRIMARY KEY (group_id, sender)
) WITHOUT ROWID;

-- The keys of group logs, more than one of an epoch if a thief of the owner's pair made another. Messages of earlier epochs
-- stay on nodes until a snapshot replaces them.
CREATE TABLE epoch_keys (
  row_id TEXT PRIMARY KEY,                 -- group_id/epoch/key_id; without the last for one from before editions named it
  group_id TEXT NOT NULL, epoch INTEGER NOT NULL CHECK (epoch > 0),
  key_id TEXT,
  secret_nonce BLOB NOT NULL CHECK (length(secret_nonce) = 12),
  secret BLOB NOT NULL,                    -- 32 bytes under the local key, AAD 'log_keys' 00 row_id
  received_at TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO epoch_keys
SELECT group_id || '/' || epoch, group_id, epoch, NULL, secret_nonce, secret, received_at FROM log_keys;
-- The same rows are in the table that takes its place, still encrypted.
DROP TABLE log_keys;
ALTER TABLE epoch_keys RENAME TO log_keys;
CREATE INDEX idx_log_keys_epoch ON log_keys(group_id, epoch);
