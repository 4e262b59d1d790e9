-- name: receipts
-- What the archive keeps of receipts, as it keeps it: ids as text.
SELECT receipt_id::text AS receipt_id, message_id::text AS message_id, encode(replay_key, 'hex') AS replay_key,
  sender_nhi, recipient_nhi, channel_id::text AS channel_id, priority, wire_bytes, status, attested_by,
  delivery_attempts, last_attempt_at, sent_at, accepted_at, expires_at, delivered_at, acknowledged_at, read_at,
  failure_reason, receipt_wire, bucket, (sent_at AT TIME ZONE 'UTC')::date AS day
FROM delivery_receipts

-- name: receipts_days
-- The days from one time to another of which there is a partition, or rows that missed theirs; oldest first. What is
-- pending has not come to its end: the ledger still works on it.
WITH counted AS (
  SELECT (sent_at AT TIME ZONE 'UTC')::date AS day, count(*) AS row_count, count(*) FILTER (WHERE status = 'pending') AS pending
  FROM delivery_receipts WHERE sent_at >= $1 AND sent_at < $2 GROUP BY 1
), made AS (
  SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS day FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
  WHERE i.inhparent = 'delivery_receipts'::regclass AND c.relname ~ '_[0-9]{8}$'
)
SELECT day, coalesce(row_count, 0) AS row_count, coalesce(pending, 0) AS pending FROM made FULL JOIN counted USING (day)
WHERE day >= ($1::timestamptz AT TIME ZONE 'UTC')::date AND day < ($2::timestamptz AT TIME ZONE 'UTC')::date ORDER BY day

-- name: receipts_sum
-- How many there are, and the sum of a hash of their ids: 15 hexadecimal digits of MD5, which Spark computes as well.
SELECT count(*) AS row_count, coalesce(sum(('x' || left(md5(receipt_id::text), 15))::bit(60)::bigint), 0)::text AS id_hash_sum
FROM delivery_receipts WHERE sent_at >= $1 AND sent_at < $2

-- name: receipts_count
SELECT count(*) AS row_count FROM delivery_receipts WHERE sent_at >= $1 AND sent_at < $2

-- name: receipts_patience
-- A transaction that waits for the lock below holds up all mail: not for long.
SET LOCAL lock_timeout = '1s'

-- name: receipts_lock
-- First, and of the whole table: dropping a partition takes it anyway, and with the partition's lock alone two
-- transactions could wait for each other.
LOCK TABLE ONLY delivery_receipts IN ACCESS EXCLUSIVE MODE

-- name: receipts_partitions
SELECT c.relname AS partition FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = 'delivery_receipts'::regclass ORDER BY 1

-- name: receipts_drop_day
DROP TABLE {partition}

-- name: receipts_purge_default
DELETE FROM delivery_receipts_default WHERE sent_at >= $1 AND sent_at < $2

-- name: receipts_purge_ids
-- Exactly these, where others of the same days have come since.
WITH gone AS (
  DELETE FROM delivery_receipts AS r USING archived_ids AS a
  WHERE r.receipt_id = a.receipt_id::uuid AND r.sent_at >= $1 AND r.sent_at < $2 RETURNING 1
)
SELECT count(*) AS purged FROM gone

-- name: receipts_pending
-- Of messages that are under way: the relay still writes into these.
SELECT count(*) AS row_count FROM delivery_receipts WHERE (sender_nhi = $1 OR recipient_nhi = $1) AND status = 'pending'

-- name: receipts_erase
WITH gone AS (
  DELETE FROM delivery_receipts WHERE (sender_nhi = $1 OR recipient_nhi = $1) AND status <> 'pending' RETURNING 1
)
SELECT count(*) AS erased FROM gone

-- name: envelopes_about_agent
-- Messages that wait, without what is in them.
SELECT recipient_nhi, sender_nhi, message_id::text AS message_id, encode(replay_key, 'hex') AS replay_key, key_id::text AS key_id,
  sender_key_id::text AS sender_key_id, priority, channel_id::text AS channel_id, correlation_id::text AS correlation_id,
  created_at, accepted_at, queued_at, expires_at, state, dead_at, dead_reason, wire_bytes
FROM envelopes WHERE sender_nhi = $1 OR recipient_nhi = $1 ORDER BY accepted_at, message_id

-- name: receipts_fingerprints
-- Every day that there is a receipt of, how many, and the sum of a hash over whatever of them can change.
SELECT (sent_at AT TIME ZONE 'UTC')::date AS day, count(*) AS row_count,
  sum(hash_record_extended(ROW(receipt_id, status, delivery_attempts, delivered_at), 0)::numeric)::text AS hash_sum
FROM delivery_receipts GROUP BY 1
