-- What the server says without the recipient's signature: shown, and believed for nothing that cannot be undone.
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

-- What was called failed and still has its content was a server's word, and is followed again.
UPDATE outbox SET status = 'queued', said = 'failed', said_at = created_at WHERE status = 'failed' AND body IS NOT NULL;

-- Envelopes that were handed out a second time, and when the server was last told what became of them.
CREATE TABLE repeated (
  replay_key TEXT PRIMARY KEY CHECK (length(replay_key) = 64 AND replay_key NOT GLOB '*[^0-9a-f]*'),
  told_at TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX idx_repeated_told ON repeated(told_at);
