-- part: receipt_step
-- One step `w` of a receipt `r`. What has come to an end keeps its status, and what was delivered does not expire; the times
-- of what happened are written anyway. The relay's word does not take the place of the recipient's on the same thing.
status = CASE WHEN r.status = 'pending' OR (r.status = 'delivered' AND r.read_at IS NULL AND w.status <> 'expired')
    THEN w.status ELSE r.status END,
  attested_by = CASE
    WHEN r.status = w.status AND r.attested_by = 'recipient' THEN r.attested_by
    WHEN r.status = 'pending' OR (r.status = 'delivered' AND r.read_at IS NULL AND w.status <> 'expired')
    THEN w.attested_by ELSE r.attested_by END,
  delivered_at = coalesce(r.delivered_at, w.delivered_at),
  acknowledged_at = coalesce(r.acknowledged_at, w.acknowledged_at),
  read_at = coalesce(r.read_at, w.read_at),
  delivery_attempts = greatest(r.delivery_attempts, w.attempts),
  last_attempt_at = coalesce(w.last_attempt_at, r.last_attempt_at),
  failure_reason = coalesce(r.failure_reason, w.reason),
  receipt_wire = CASE WHEN r.status = 'pending' OR (r.status = 'delivered' AND r.read_at IS NULL)
    THEN coalesce(w.receipt_wire, r.receipt_wire) ELSE r.receipt_wire END
