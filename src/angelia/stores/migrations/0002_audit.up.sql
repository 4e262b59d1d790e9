-- audit: what happened. Events are written by the act's own transaction, in daily partitions (UTC) and a default one.
CREATE TABLE audit_events (
  event_id UUID NOT NULL,
  occurred_at TIMESTAMPTZ NOT NULL,
  xid XID8 NOT NULL DEFAULT pg_current_xact_id(),
  event_type TEXT NOT NULL,
  actor_nhi VARCHAR(255) COLLATE "C",
  object_nhi VARCHAR(255) COLLATE "C",
  message_id UUID,
  replay_key BYTEA CHECK (octet_length(replay_key) = 32),
  detail JSONB NOT NULL DEFAULT '{}',
  event_hash BYTEA NOT NULL CHECK (octet_length(event_hash) = 32),
  redacted_at TIMESTAMPTZ,
  PRIMARY KEY (event_id, occurred_at)
) PARTITION BY RANGE (occurred_at);
CREATE TABLE audit_events_default PARTITION OF audit_events DEFAULT;
CREATE INDEX idx_audit_xid ON audit_events (xid, event_id);
CREATE INDEX idx_audit_occurred ON audit_events (occurred_at, event_id);
CREATE INDEX idx_audit_actor ON audit_events (actor_nhi, occurred_at DESC);
CREATE INDEX idx_audit_message ON audit_events (message_id) WHERE message_id IS NOT NULL;

-- The sealer's chain over them: dense positions from 1.
CREATE TABLE audit_chain (
  position BIGINT PRIMARY KEY CHECK (position > 0),
  event_id UUID NOT NULL UNIQUE,
  occurred_at TIMESTAMPTZ NOT NULL,
  entry_hash BYTEA NOT NULL CHECK (octet_length(entry_hash) = 32)
);

-- One row: where the next tick goes on.
CREATE TABLE audit_sealer (
  one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one),
  next_xid XID8 NOT NULL,
  position BIGINT NOT NULL,
  entry_hash BYTEA NOT NULL CHECK (octet_length(entry_hash) = 32)
);
INSERT INTO audit_sealer (next_xid, position, entry_hash)
VALUES ('0', 0, decode(repeat('00', 32), 'hex'));

CREATE TABLE audit_checkpoints (
  position BIGINT PRIMARY KEY,
  entry_hash BYTEA NOT NULL CHECK (octet_length(entry_hash) = 32),
  node_key_id UUID NOT NULL,
  signed_at TIMESTAMPTZ NOT NULL,
  signature BYTEA NOT NULL CHECK (octet_length(signature) = 64)
);
