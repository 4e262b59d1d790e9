-- Channels that this agent subscribes to or owns: mail that brings their keys is expected.
CREATE TABLE channels (channel_id TEXT PRIMARY KEY, name TEXT NOT NULL, joined_at TEXT NOT NULL) WITHOUT ROWID;

-- The keys of channels, one per epoch, and their senders.
CREATE TABLE channel_keys (
  channel_id TEXT NOT NULL, key_id TEXT NOT NULL, epoch INTEGER NOT NULL CHECK (epoch > 0),
  secret_nonce BLOB NOT NULL CHECK (length(secret_nonce) = 12),
  secret BLOB NOT NULL,                    -- 32 bytes under the local key, AAD 'channel_keys' 00 key_id
  sender_nhi TEXT NOT NULL, received_at TEXT NOT NULL, destroy_at TEXT,
  PRIMARY KEY (channel_id, key_id)
) WITHOUT ROWID;
CREATE INDEX idx_channel_keys_destroy ON channel_keys(destroy_at) WHERE destroy_at IS NOT NULL;

-- Opened messages of channels: each has one offset, and an offset has one message.
CREATE TABLE channel_opened (
  channel_id TEXT NOT NULL, channel_offset INTEGER NOT NULL CHECK (channel_offset > 0), replay_key TEXT NOT NULL,
  sender_fp TEXT NOT NULL, msg_id TEXT NOT NULL, expires_at TEXT NOT NULL,
  PRIMARY KEY (channel_id, channel_offset),
  UNIQUE (channel_id, sender_fp, msg_id)
) WITHOUT ROWID;
CREATE INDEX idx_channel_opened_expires ON channel_opened(expires_at);
