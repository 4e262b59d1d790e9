-- The mailbox's database. Times are text of one width, YYYY-MM-DDTHH:MM:SS.ffffffZ, so that text order is time order.

-- The envelopes that were opened, until none of them can be accepted again.
CREATE TABLE replay_state (
  replay_key         TEXT PRIMARY KEY,
  msg_id             TEXT NOT NULL,
  sender_fp          TEXT NOT NULL,
  recipient_fp       TEXT NOT NULL,
  seen_at            TIMESTAMP NOT NULL,
  envelope_timestamp TEXT NOT NULL,
  expires_at         TEXT NOT NULL,           -- when the envelope stops being acceptable
  UNIQUE (sender_fp, msg_id),                 -- a sender uses a message id once
  CHECK (length(replay_key) = 64 AND replay_key NOT GLOB '*[^0-9a-f]*')
) WITHOUT ROWID;
CREATE INDEX idx_seen_at ON replay_state(seen_at);
CREATE INDEX idx_msg_id  ON replay_state(msg_id);
CREATE INDEX idx_expires ON replay_state(expires_at);

CREATE TABLE inbox (
  replay_key TEXT PRIMARY KEY CHECK (length(replay_key) = 64 AND replay_key NOT GLOB '*[^0-9a-f]*'),
  msg_id TEXT NOT NULL, sender_nhi TEXT NOT NULL, sender_fp TEXT NOT NULL, recipient_nhi TEXT NOT NULL,
  channel_id TEXT, correlation_id TEXT, priority INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 3),
  created_at TEXT NOT NULL, received_at TEXT NOT NULL, expires_at TEXT NOT NULL,
  status TEXT NOT NULL DEFAULT 'unread' CHECK (status IN ('unread','read')), acked_at TEXT,
  body_nonce BLOB NOT NULL CHECK (length(body_nonce) = 12), body BLOB NOT NULL   -- plaintext under the local key, AAD 'inbox' 00 replay_key
);
CREATE INDEX idx_inbox_received ON inbox(received_at DESC);
CREATE INDEX idx_inbox_unacked  ON inbox(received_at) WHERE acked_at IS NULL;

-- The messages of the inbox that are for the SDK and not for the agent's owner; their status `read` means handled.
CREATE TABLE controls (
  replay_key TEXT PRIMARY KEY REFERENCES inbox(replay_key) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE TABLE outbox (
  replay_key TEXT PRIMARY KEY CHECK (length(replay_key) = 64 AND replay_key NOT GLOB '*[^0-9a-f]*'),
  msg_id TEXT NOT NULL, recipient_nhi TEXT NOT NULL, channel_id TEXT, correlation_id TEXT,
  created_at TEXT NOT NULL, expires_at TEXT NOT NULL,
  status TEXT NOT NULL DEFAULT 'stored' CHECK (status IN ('stored','queued','delivered','read','expired','failed','resealed')),
  attempts INTEGER NOT NULL DEFAULT 0, next_try_at TEXT,
  body_nonce BLOB, body BLOB,              -- plaintext under the local key, only until the message is delivered (needed to seal it again)
  CHECK ((body IS NULL) = (body_nonce IS NULL))
);
CREATE INDEX idx_outbox_msg  ON outbox(msg_id);
CREATE INDEX idx_outbox_next ON outbox(next_try_at) WHERE next_try_at IS NOT NULL;
CREATE INDEX idx_outbox_kept ON outbox(expires_at) WHERE body IS NOT NULL;

-- The signing pair of each trusted agent, and the last verified bundle of its chain.
CREATE TABLE pins (
  nhi TEXT PRIMARY KEY, signer_id TEXT NOT NULL, fingerprint TEXT NOT NULL CHECK (length(fingerprint) = 43),
  ed25519_public_key BLOB NOT NULL CHECK (length(ed25519_public_key) = 32),
  ml_dsa_public_key BLOB NOT NULL CHECK (length(ml_dsa_public_key) = 1952),
  bundle_version INTEGER NOT NULL CHECK (bundle_version > 0), bundle_hash BLOB NOT NULL CHECK (length(bundle_hash) = 32),
  trusted_by TEXT NOT NULL CHECK (trusted_by IN ('first_use','rotation','operator')), pinned_at TEXT NOT NULL
);

-- Replaced signing pairs: valid for what they signed before their rotation.
CREATE TABLE former_signers (
  nhi TEXT NOT NULL, signer_id TEXT NOT NULL, fingerprint TEXT NOT NULL CHECK (length(fingerprint) = 43),
  ed25519_public_key BLOB NOT NULL CHECK (length(ed25519_public_key) = 32),
  ml_dsa_public_key BLOB NOT NULL CHECK (length(ml_dsa_public_key) = 1952),
  rotated_at TEXT NOT NULL,
  PRIMARY KEY (nhi, signer_id)
);

-- The bundle behind each pin, as JSON, and those of its keys that the server called revoked.
CREATE TABLE bundles (
  nhi TEXT PRIMARY KEY REFERENCES pins(nhi) ON DELETE CASCADE,
  link TEXT NOT NULL, revoked TEXT NOT NULL, fetched_at TEXT NOT NULL
);

-- The agent's private KEM keys that are not in the key file: in grace, one-time, and a separate ML-KEM key.
CREATE TABLE kem_keys (
  key_id TEXT PRIMARY KEY, key_type TEXT NOT NULL CHECK (key_type IN ('ml_kem_768','xwing')),
  usage TEXT NOT NULL CHECK (usage IN ('signed','last_resort','one_time')),
  status TEXT NOT NULL CHECK (status IN ('active','grace')),
  public_key BLOB NOT NULL, seed_nonce BLOB NOT NULL CHECK (length(seed_nonce) = 12),
  seed BLOB NOT NULL,                      -- 64 or 96 bytes under the local key, AAD 'kem_keys' 00 key_id
  created_at TEXT NOT NULL, rotated_at TEXT, destroy_at TEXT
);
CREATE INDEX idx_kem_destroy ON kem_keys(destroy_at) WHERE destroy_at IS NOT NULL;

-- The agent's own chain of bundles, with the suites that each one accepts.
CREATE TABLE own_bundles (
  bundle_version INTEGER PRIMARY KEY CHECK (bundle_version > 0),
  issued_at TEXT NOT NULL, suites INTEGER NOT NULL, link TEXT NOT NULL
);
CREATE INDEX idx_own_issued ON own_bundles(issued_at);

CREATE TABLE allowlist (fingerprint TEXT PRIMARY KEY, nhi TEXT NOT NULL, label TEXT, added_at TEXT NOT NULL) WITHOUT ROWID;

-- Envelopes of allowed senders that failed to open; too many of one sender look like an attack.
CREATE TABLE failures (replay_key TEXT PRIMARY KEY, sender_fp TEXT NOT NULL, failed_at TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX idx_failures_sender ON failures(sender_fp, failed_at);

CREATE TABLE legacy_msg_ids (msg_id TEXT PRIMARY KEY, imported_at TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
