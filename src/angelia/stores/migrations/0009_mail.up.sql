-- mail: envelopes that wait for their recipient, what was sent under which id, and what became of every message.
CREATE SEQUENCE envelope_seq;
CREATE TABLE envelopes (
  bucket SMALLINT NOT NULL,
  recipient_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  mref BYTEA NOT NULL CHECK (octet_length(mref) = 16),
  seq BIGINT NOT NULL DEFAULT nextval('envelope_seq'),
  sender_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  message_id UUID NOT NULL,
  replay_key BYTEA NOT NULL CHECK (octet_length(replay_key) = 32),
  key_id UUID NOT NULL,
  sender_key_id UUID NOT NULL,
  priority SMALLINT NOT NULL CHECK (priority BETWEEN 0 AND 3),
  channel_id UUID,
  correlation_id UUID,
  created_at TIMESTAMPTZ NOT NULL,
  accepted_at TIMESTAMPTZ NOT NULL,
  -- Since when it is in its queue; later than accepted_at for a dead letter that is tried again.
  queued_at TIMESTAMPTZ NOT NULL,
  expires_at TIMESTAMPTZ NOT NULL,
  state TEXT NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'dead')),
  dead_at TIMESTAMPTZ,
  dead_reason TEXT CHECK (length(dead_reason) <= 1024),
  wire BYTEA NOT NULL,
  wire_bytes INTEGER NOT NULL,
  PRIMARY KEY (bucket, recipient_nhi, mref),
  UNIQUE (bucket, replay_key),
  CHECK (bucket = get_byte(sha256(convert_to(recipient_nhi, 'UTF8')), 0)),
  CHECK (wire_bytes = octet_length(wire)),
  CHECK ((state = 'dead') = (dead_at IS NOT NULL))
) PARTITION BY RANGE (bucket);
CREATE TABLE envelopes_0 PARTITION OF envelopes FOR VALUES FROM (0) TO (64);
CREATE TABLE envelopes_1 PARTITION OF envelopes FOR VALUES FROM (64) TO (128);
CREATE TABLE envelopes_2 PARTITION OF envelopes FOR VALUES FROM (128) TO (192);
CREATE TABLE envelopes_3 PARTITION OF envelopes FOR VALUES FROM (192) TO (256);
CREATE INDEX idx_envelopes_expires ON envelopes (expires_at);
CREATE INDEX idx_envelopes_queued ON envelopes (queued_at) WHERE state = 'queued';
CREATE INDEX idx_envelopes_correlation ON envelopes (recipient_nhi, correlation_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX idx_envelopes_channel ON envelopes (recipient_nhi, channel_id) WHERE channel_id IS NOT NULL;
-- How much a recipient has, dead letters among it, and how much of it is one sender's.
CREATE INDEX idx_envelopes_held ON envelopes (bucket, recipient_nhi, sender_nhi) INCLUDE (wire_bytes);
CREATE INDEX idx_envelopes_dead ON envelopes (recipient_nhi, dead_at, mref) WHERE state = 'dead';

-- Makes a send idempotent, and outlives the envelope.
CREATE TABLE sent_ids (
  sender_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  message_id UUID NOT NULL,
  replay_key BYTEA NOT NULL CHECK (octet_length(replay_key) = 32),
  answer JSONB NOT NULL,
  expires_at TIMESTAMPTZ NOT NULL,
  PRIMARY KEY (sender_nhi, message_id)
);
CREATE INDEX idx_sent_ids_expires ON sent_ids (expires_at);

CREATE TABLE delivery_receipts (
  receipt_id UUID NOT NULL,
  message_id UUID NOT NULL,
  replay_key BYTEA NOT NULL CHECK (octet_length(replay_key) = 32),
  sender_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  recipient_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  channel_id UUID,
  priority SMALLINT NOT NULL CHECK (priority BETWEEN 0 AND 3),
  wire_bytes INTEGER NOT NULL CHECK (wire_bytes > 0),
  status TEXT NOT NULL CHECK (status IN ('pending', 'delivered', 'expired', 'failed')),
  attested_by TEXT NOT NULL DEFAULT 'relay' CHECK (attested_by IN ('relay', 'recipient')),
  delivery_attempts INTEGER NOT NULL DEFAULT 0,
  last_attempt_at TIMESTAMPTZ,
  sent_at TIMESTAMPTZ NOT NULL,
  accepted_at TIMESTAMPTZ NOT NULL,
  expires_at TIMESTAMPTZ NOT NULL,
  delivered_at TIMESTAMPTZ,
  acknowledged_at TIMESTAMPTZ,
  read_at TIMESTAMPTZ,
  failure_reason TEXT CHECK (length(failure_reason) <= 1024),
  receipt_wire BYTEA,
  bucket SMALLINT NOT NULL,
  PRIMARY KEY (receipt_id, sent_at),
  UNIQUE (message_id, sender_nhi, recipient_nhi, sent_at),
  CHECK (bucket = get_byte(sha256(convert_to(recipient_nhi, 'UTF8')), 0))
) PARTITION BY RANGE (sent_at);
CREATE TABLE delivery_receipts_default PARTITION OF delivery_receipts DEFAULT;
CREATE INDEX idx_receipts_recipient ON delivery_receipts (recipient_nhi, sent_at DESC);
CREATE INDEX idx_receipts_sender ON delivery_receipts (sender_nhi, sent_at DESC);
CREATE INDEX idx_receipts_status ON delivery_receipts (status, sent_at);
CREATE INDEX idx_receipts_replay_key ON delivery_receipts (replay_key);
CREATE INDEX idx_receipts_bucket ON delivery_receipts (bucket, sent_at);

-- How far the ticks have come: which memory of the hot tier has been rebuilt, since when new rows are looked after.
CREATE TABLE mail_marks (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
);
