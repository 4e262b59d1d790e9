-- name: modes
SELECT push_paused AND NOT push_resuming AS push_paused, push_resuming, pop_paused FROM queue_modes

-- name: hold_mode
-- While a transaction holds this, the modes of pushes stay as they are, and no message leaves the buffer.
SELECT pg_advisory_xact_lock_shared(queue_lock(0))

-- name: lock_mode
SELECT pg_advisory_xact_lock(queue_lock(0))

-- name: pause_pushes
UPDATE queue_modes SET push_paused = true, push_resuming = false

-- name: take_pushes
-- Pushes are taken, except those to partitions with buffered messages, as long as there are some.
UPDATE queue_modes SET push_paused = w.some_left, push_resuming = w.some_left
FROM (SELECT EXISTS (SELECT FROM queue_buffered_partitions) AS some_left) AS w
WHERE push_paused <> w.some_left OR push_resuming <> w.some_left

-- name: set_pop
UPDATE queue_modes SET pop_paused = $1 WHERE pop_paused <> $1

-- name: lock_queues
-- This and the next two as in queue_push, in the same order: so neither waits for the other while the other waits for it.
SELECT pg_advisory_xact_lock_shared(k) FROM (SELECT DISTINCT queue_lock(q) AS k FROM unnest($1::bigint[]) AS q ORDER BY k) AS locks

-- name: lock_partitions
SELECT pg_advisory_xact_lock(k) FROM (SELECT DISTINCT queue_partition_lock(p) AS k FROM unnest($1::bigint[]) AS p ORDER BY k) AS locks

-- name: lock_sizes
SELECT pg_advisory_xact_lock(queue_lock(-queue_no))
FROM (SELECT queue_no FROM queues WHERE queue_no = ANY ($1::bigint[]) AND (options ->> 'maxSize')::bigint > 0 ORDER BY queue_no) AS q

-- name: unchanged
-- Those of the partitions that still exist, and whose queue has still these options.
SELECT p.partition_no, EXISTS (
  SELECT FROM queue_buffered_partitions AS b WHERE b.queue_name = q.name AND b.partition_name = p.name
) AS has_buffered
FROM unnest($1::bigint[], $2::bigint[]) AS w (partition_no, version)
JOIN queue_partitions AS p ON p.partition_no = w.partition_no
JOIN queues AS q ON q.queue_no = p.queue_no AND q.options_version = w.version

-- name: keep
INSERT INTO queue_buffered (
  queue_name, partition_name, message_id, transaction_id, trace_id, producer, key_id, body, buffered_at, retry_at
)
SELECT queue_name, partition_name, message_id, transaction_id, trace_id, producer, key_id, body, $9, $9
FROM unnest($1::text[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::bytea[])
  WITH ORDINALITY AS w (queue_name, partition_name, message_id, transaction_id, trace_id, producer, key_id, body, n)
ORDER BY n

-- name: counts
SELECT count(*) FILTER (WHERE p.error IS NULL) AS pending, count(*) FILTER (WHERE p.error IS NOT NULL) AS failed
FROM queue_buffered AS b LEFT JOIN queue_buffered_partitions AS p USING (queue_name, partition_name)

-- name: any_buffered
SELECT EXISTS (SELECT FROM queue_buffered_partitions)

-- name: due
SELECT queue_name, partition_name FROM queue_buffered_partitions WHERE retry_at <= $1
ORDER BY retry_at, queue_name, partition_name LIMIT $2

-- name: any_due
SELECT EXISTS (SELECT FROM queue_buffered_partitions WHERE retry_at <= $1)

-- part: from_place
-- Buffered messages from those of a place on. Only the index of partitions has them in this order: where most messages are of one partition,
-- the planner would expect those of any other among the first of the table, too, and read past all.
queue_buffered AS b WHERE (b.queue_name, b.partition_name) >= (w.queue_name, w.partition_name)
ORDER BY b.queue_name, b.partition_name, b.message_no

-- name: first_messages
-- The first buffered messages of partitions, in order: of each its share of so many, and all not more than about so many bytes.
SELECT * FROM (
  SELECT b.*, w.n, sum(length(b.body)) OVER (ORDER BY w.n, b.message_no) - length(b.body) AS before
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS w (queue_name, partition_name, n)
  CROSS JOIN LATERAL (SELECT * FROM {from_place} LIMIT greatest(1, $3::bigint / cardinality($1::text[]))) AS b
  WHERE b.queue_name = w.queue_name AND b.partition_name = w.partition_name
) AS m
WHERE m.before < $4 ORDER BY m.n, m.message_no

-- name: release
-- A push to these partitions is stored again.
DELETE FROM queue_buffered_partitions AS p USING unnest($1::text[], $2::text[]) AS w (queue_name, partition_name)
WHERE p.queue_name = w.queue_name AND p.partition_name = w.partition_name

-- name: present
SELECT message_no FROM queue_buffered WHERE message_no = ANY ($1::bigint[]) FOR UPDATE

-- name: done
DELETE FROM queue_buffered WHERE message_no = ANY ($1::bigint[])

-- name: hold_back
-- Those of the partitions that have buffered messages left wait for the next try.
INSERT INTO queue_buffered_partitions (queue_name, partition_name, retry_at, error)
SELECT w.* FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[]) AS w (queue_name, partition_name, retry_at, error)
CROSS JOIN LATERAL (SELECT * FROM {from_place} LIMIT 1) AS b
WHERE b.queue_name = w.queue_name AND b.partition_name = w.partition_name

-- name: forget_queue
WITH partitions AS (DELETE FROM queue_buffered_partitions WHERE queue_name = $1)
DELETE FROM queue_buffered WHERE queue_name = $1
