-- Mail of senders that are not allowed: it waits at the server, and is fetched by its id once its sender is allowed.
CREATE TABLE kept_out (
  replay_key TEXT PRIMARY KEY CHECK (length(replay_key) = 64 AND replay_key NOT GLOB '*[^0-9a-f]*'),
  sender_nhi TEXT NOT NULL, lease_token TEXT NOT NULL, kept_at TEXT NOT NULL, expires_at TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX idx_kept_out_sender ON kept_out(sender_nhi);
CREATE INDEX idx_kept_out_expires ON kept_out(expires_at);

-- Replies are found by the message that they answer.
CREATE INDEX idx_inbox_correlation ON inbox(correlation_id) WHERE correlation_id IS NOT NULL;

-- The server is asked about messages that it has until they are settled.
CREATE INDEX idx_outbox_unsettled ON outbox(expires_at) WHERE status IN ('queued', 'delivered');
