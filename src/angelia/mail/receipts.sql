-- part: receipt
-- The columns of a receipt, for the statements below.
receipt_id, message_id, replay_key, sender_nhi AS sender, recipient_nhi AS recipient, channel_id, priority, wire_bytes, status,
  attested_by, delivery_attempts, last_attempt_at, sent_at, accepted_at, expires_at, delivered_at, acknowledged_at, read_at,
  failure_reason, receipt_wire

-- name: move
UPDATE delivery_receipts AS r SET {receipt_step}
FROM unnest($1::uuid[], $2::varchar[], $3::varchar[], $4::timestamptz[], $5::text[], $6::text[], $7::timestamptz[],
            $8::timestamptz[], $9::timestamptz[], $10::integer[], $11::timestamptz[], $12::text[], $13::bytea[])
  AS w (message_id, sender, recipient, sent_at, status, attested_by, delivered_at, acknowledged_at, read_at, attempts,
        last_attempt_at, reason, receipt_wire)
WHERE r.message_id = w.message_id AND r.sender_nhi = w.sender AND r.recipient_nhi = w.recipient AND r.sent_at = w.sent_at
RETURNING r.replay_key, r.status

-- name: of_message
SELECT {receipt} FROM delivery_receipts WHERE replay_key = ANY ($1::bytea[])

-- name: lock
SELECT {receipt} FROM delivery_receipts WHERE replay_key = $1 FOR UPDATE

-- name: page
-- What an agent sent and what it received, newest first; each half by its own index, and a message to oneself in one; $8 asks
-- for one half alone.
SELECT * FROM (
  (SELECT {receipt} FROM delivery_receipts WHERE sender_nhi = $1 AND ($8::text IS NULL OR $8 = 'sent')
     AND ($2::text IS NULL OR status = $2) AND ($3::boolean IS NULL OR (read_at IS NOT NULL) = $3)
     AND ($4::timestamptz IS NULL OR sent_at >= $4)
     AND ($5::timestamptz IS NULL OR (sent_at, receipt_id) < ($5, $6::uuid))
   ORDER BY sent_at DESC, receipt_id DESC LIMIT $7)
  UNION ALL
  (SELECT {receipt} FROM delivery_receipts WHERE recipient_nhi = $1 AND ($8::text IS NULL OR $8 = 'received')
     AND (sender_nhi <> $1 OR $8 IS NOT NULL)
     AND ($2::text IS NULL OR status = $2) AND ($3::boolean IS NULL OR (read_at IS NOT NULL) = $3)
     AND ($4::timestamptz IS NULL OR sent_at >= $4)
     AND ($5::timestamptz IS NULL OR (sent_at, receipt_id) < ($5, $6::uuid))
   ORDER BY sent_at DESC, receipt_id DESC LIMIT $7)
) AS halves
ORDER BY sent_at DESC, receipt_id DESC LIMIT $7

-- name: count_before
-- However many there are, no more than so many are read.
SELECT count(*) FROM (SELECT 1 FROM delivery_receipts WHERE sent_at < $1 LIMIT $2) AS counted

-- name: sent_before
-- Only partitions of days that old are looked at.
SELECT count(*) AS row_count, min(sent_at) AS oldest FROM delivery_receipts WHERE sent_at < $1
