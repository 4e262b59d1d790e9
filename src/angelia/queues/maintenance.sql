-- name: modes
SELECT push_paused, push_resuming, pop_paused FROM queue_modes

-- name: hold_mode
-- While a transaction holds this, pushes do not change from buffered to stored.
SELECT pg_advisory_xact_lock_shared(queue_lock(0))

-- name: lock_mode
SELECT pg_advisory_xact_lock(queue_lock(0))

-- name: set_push
UPDATE queue_modes SET push_paused = $1, push_resuming = $2

-- name: set_pop
UPDATE queue_modes SET pop_paused = $1 WHERE pop_paused <> $1

-- name: keep
INSERT INTO queue_buffered (
  queue_name, partition_name, message_id, transaction_id, trace_id, producer, key_id, body, buffered_at, retry_at
)
SELECT queue_name, partition_name, message_id, transaction_id, trace_id, producer, key_id, body, $9, $9
FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::bytea[])
  WITH ORDINALITY AS w (queue_name, partition_name, message_id, transaction_id, trace_id, producer, key_id, body, n)
ORDER BY n

-- name: counts
SELECT count(*) FILTER (WHERE error IS NULL) AS pending, count(*) FILTER (WHERE error IS NOT NULL) AS failed FROM queue_buffered

-- name: due
-- Messages that may be stored, in order; not more of them than about so many bytes.
SELECT * FROM (
  SELECT b.*, sum(length(b.body)) OVER (ORDER BY b.message_no) - length(b.body) AS before
  FROM (SELECT * FROM queue_buffered WHERE retry_at <= $1 ORDER BY message_no LIMIT $2) AS b
) AS w
WHERE w.before < $3 ORDER BY w.message_no

-- name: present
SELECT message_no FROM queue_buffered WHERE message_no = ANY ($1::bigint[]) FOR UPDATE

-- name: done
DELETE FROM queue_buffered WHERE message_no = ANY ($1::bigint[])

-- name: hold_back
-- Messages behind one that could not be stored wait with it, so that a partition keeps its order.
UPDATE queue_buffered AS b SET retry_at = $4, error = coalesce(w.error, b.error)
FROM unnest($1::text[], $2::text[], $3::text[]) AS w (queue_name, partition_name, error)
WHERE b.queue_name = w.queue_name AND b.partition_name = w.partition_name

-- name: any_due
SELECT EXISTS (SELECT FROM queue_buffered WHERE retry_at <= $1)

-- name: forget_queue
DELETE FROM queue_buffered WHERE queue_name = $1
