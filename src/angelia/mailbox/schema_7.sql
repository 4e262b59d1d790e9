-- The groups of group logs that this agent is a member of: the newest edition of each, as an admin of the one before it
-- sent it. Nodes are not asked who is a member.
CREATE TABLE logs (
  group_id TEXT PRIMARY KEY,               -- base58
  name TEXT NOT NULL, number INTEGER NOT NULL CHECK (number > 0), edition BLOB NOT NULL,
  sender_nhi TEXT NOT NULL, joined_at TEXT NOT NULL,
  untold INTEGER NOT NULL DEFAULT 0        -- the other members have not heard of this agent's new key yet
) WITHOUT ROWID;
CREATE INDEX idx_logs_name ON logs(name);

-- The keys of group logs, one per epoch. Messages of earlier epochs stay on nodes until a snapshot replaces them.
CREATE TABLE log_keys (
  group_id TEXT NOT NULL, epoch INTEGER NOT NULL CHECK (epoch > 0),
  secret_nonce BLOB NOT NULL CHECK (length(secret_nonce) = 12),
  secret BLOB NOT NULL,                    -- 32 bytes under the local key, AAD 'log_keys' 00 group_id/epoch
  received_at TEXT NOT NULL,
  PRIMARY KEY (group_id, epoch)
) WITHOUT ROWID;
