-- mail: the order of a queue as the hot tier has it, so that a claim can see that it passes nothing older.
CREATE INDEX idx_envelopes_order ON envelopes (bucket, recipient_nhi, (((3 - priority)::bigint << 48) + seq))
  WHERE state = 'queued';
