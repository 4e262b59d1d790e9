-- The status that the server reports without the recipient's signature: it is shown, and nothing is destroyed for it.
ALTER TABLE outbox ADD COLUMN said TEXT CHECK (said IN ('delivered', 'expired', 'failed'));
ALTER TABLE outbox ADD COLUMN said_reason TEXT;
ALTER TABLE outbox ADD COLUMN said_at TEXT;
ALTER TABLE outbox ADD COLUMN withdraw_asked_at TEXT;    -- when this agent asked the server to take the message back
ALTER TABLE outbox ADD COLUMN reseals INTEGER NOT NULL DEFAULT 0;   -- how often the message was sealed again, over its whole life
ALTER TABLE outbox ADD COLUMN bundle_version INTEGER NOT NULL DEFAULT 0;   -- of the recipient's bundle that it was sealed under
ALTER TABLE outbox ADD COLUMN one_time INTEGER NOT NULL DEFAULT 0;   -- whether it was sealed to a one-time key
ALTER TABLE outbox ADD COLUMN waits_for TEXT;            -- why the last try came to nothing
CREATE INDEX idx_outbox_replaced ON outbox(msg_id) WHERE status = 'resealed';
CREATE INDEX idx_outbox_replacing ON outbox(msg_id) WHERE reseals > 0 AND status IN ('stored', 'queued');
CREATE INDEX idx_outbox_withdrawing ON outbox(withdraw_asked_at) WHERE withdraw_asked_at IS NOT NULL AND status IN ('stored', 'queued');
CREATE INDEX idx_outbox_refused ON outbox(expires_at) WHERE status = 'stored' AND said IS NOT NULL;

-- A failed message that still has its content is taken for a server's report: earlier releases did not store whether its
-- recipient had signed that. The server is asked again for the signature; `mail send --retry` sends the message again,
-- and a server that has it recognises the same bytes.
UPDATE outbox SET status = 'stored', said = 'failed', said_at = created_at WHERE status = 'failed' AND body IS NOT NULL;

-- Mail that was received for a program's handler that has not finished with it.
CREATE TABLE unhandled (
  replay_key TEXT PRIMARY KEY REFERENCES inbox(replay_key) ON DELETE CASCADE
) WITHOUT ROWID;

-- One-time keys of recipients that a message was sealed to, for as long as a server could hand them out again.
CREATE TABLE spent_one_time (key_id TEXT PRIMARY KEY, until TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX idx_spent_until ON spent_one_time(until);

-- A sender uses a message id once, whichever of its pairs signed. NULL where the sender's handle is not known: for
-- envelopes of Calyx, and for mail that was deleted after its pair had been revoked.
ALTER TABLE replay_state ADD COLUMN sender_nhi TEXT;
UPDATE replay_state SET sender_nhi = coalesce(
  (SELECT inbox.sender_nhi FROM inbox WHERE inbox.replay_key = replay_state.replay_key),
  (SELECT nhi FROM pins WHERE fingerprint = sender_fp),
  (SELECT nhi FROM former_signers WHERE fingerprint = sender_fp)
);

-- Keys and pairs that the server called revoked, and the newest bundle at that time. This is unsigned, so nothing is
-- deleted for it: while a pair is listed here it is not trusted, and a KEM key is not used unless a later bundle lists it
-- as active.
CREATE TABLE revocations (
  nhi TEXT NOT NULL, key_id TEXT NOT NULL, bundle_version INTEGER NOT NULL, PRIMARY KEY (nhi, key_id)
) WITHOUT ROWID;
INSERT INTO revocations (nhi, key_id, bundle_version)
SELECT DISTINCT nhi, value, bundle_version FROM bundles JOIN pins USING (nhi), json_each(revoked);
ALTER TABLE bundles DROP COLUMN revoked;

-- Envelopes that were delivered again, and when their outcome was last reported to the server.
CREATE TABLE repeated (
  replay_key TEXT PRIMARY KEY CHECK (length(replay_key) = 64 AND replay_key NOT GLOB '*[^0-9a-f]*'),
  told_at TEXT NOT NULL,
  unheard INTEGER NOT NULL                 -- how often in succession the server did not confirm it
) WITHOUT ROWID;
CREATE INDEX idx_repeated_told ON repeated(told_at);
