-- part: queue
q.queue_no, q.queue_id, q.name, q.namespace, q.task, q.created_at, q.options, q.options_version

-- part: partition
p.partition_no, p.partition_id, p.name AS partition_name, q.options || p.options AS partition_options

-- name: queue
SELECT {queue} FROM queues AS q WHERE q.name = $1

-- name: queues_of
-- The queues of a namespace, a task, or both.
SELECT {queue} FROM queues AS q
WHERE ($1::text IS NULL OR q.namespace = $1) AND ($2::text IS NULL OR q.task = $2) ORDER BY q.queue_no

-- name: partitions
-- Partitions by the names of queue and partition; those that exist.
SELECT {queue}, {partition}
FROM unnest($1::text[], $2::text[]) AS w (queue_name, partition_name)
CROSS JOIN LATERAL (SELECT * FROM queues AS q WHERE q.name = w.queue_name LIMIT 1) AS q
CROSS JOIN LATERAL (SELECT * FROM queue_partitions AS p WHERE p.queue_no = q.queue_no AND p.name = w.partition_name LIMIT 1) AS p

-- name: partitions_by_id
SELECT {queue}, {partition}
FROM unnest($1::uuid[]) AS w (partition_id)
CROSS JOIN LATERAL (SELECT * FROM queue_partitions AS p WHERE p.partition_id = w.partition_id LIMIT 1) AS p
CROSS JOIN LATERAL (SELECT * FROM queues AS q WHERE q.queue_no = p.queue_no LIMIT 1) AS q

-- name: partitions_by_no
SELECT {queue}, {partition}
FROM unnest($1::bigint[]) AS w (partition_no)
CROSS JOIN LATERAL (SELECT * FROM queue_partitions AS p WHERE p.partition_no = w.partition_no LIMIT 1) AS p
CROSS JOIN LATERAL (SELECT * FROM queues AS q WHERE q.queue_no = p.queue_no LIMIT 1) AS q

-- name: make_queue
INSERT INTO queues (queue_id, name, namespace, task, created_at, options) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name) DO NOTHING

-- name: hold_queue
-- Keeps a queue from being deleted until the transaction ends.
SELECT pg_advisory_xact_lock_shared(queue_lock(queue_no)) FROM queues WHERE name = $1

-- name: make_partitions
INSERT INTO queue_partitions (partition_id, queue_no, name, created_at)
SELECT w.partition_id, q.queue_no, w.name, $4
FROM unnest($2::uuid[], $3::text[]) AS w (partition_id, name) JOIN queues AS q ON q.name = $1
ON CONFLICT (queue_no, name) DO NOTHING

-- name: lock_queue
SELECT {queue} FROM queues AS q WHERE q.name = $1 FOR NO KEY UPDATE

-- name: change_queue
UPDATE queues AS q SET namespace = $2, task = $3, options = $4, options_version = options_version + 1 WHERE q.queue_no = $1
RETURNING {queue}

-- name: change_partition
UPDATE queue_partitions SET options = options || $3 WHERE queue_no = $1 AND name = $2

-- name: group
SELECT group_no FROM queue_groups WHERE queue_no = $1 AND name = $2

-- name: make_group
INSERT INTO queue_groups (queue_no, name, mode, from_at, created_at)
SELECT queue_no, $2, $3, $4, $5 FROM queues WHERE queue_no = $1
ON CONFLICT (queue_no, name) DO NOTHING RETURNING group_no

-- name: expect
INSERT INTO queue_expected (queue_name, group_name, since) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING

-- name: was_expected
DELETE FROM queue_expected WHERE queue_name = $1 AND group_name = $2 RETURNING true

-- name: begin_group
-- Where a new consumer group begins in the next $6 partitions after the name $5: at the first message after a time, or behind the last.
-- Returns the last of them, if there may be further ones.
WITH page AS MATERIALIZED (
  SELECT partition_no, name, floor FROM queue_partitions WHERE queue_no = $1 AND name > $5 ORDER BY name LIMIT $6
), begun AS (
  INSERT INTO queue_cursors (partition_no, group_no, version, position, settled, passed, attempts, read_at, consumed, changed_at)
  SELECT p.partition_no, $2, 1, coalesce(c.begins, n.end_position, p.floor), '{}', '{}', 0, c.stored_at, 0, $4
  FROM page AS p
  CROSS JOIN LATERAL queue_newest(p.partition_no, date_bin('1 day', $4::timestamptz, 'epoch')) AS n
  LEFT JOIN LATERAL (
    SELECT c.end_position - c.count AS begins, c.stored_at FROM queue_chunks AS c
    WHERE c.partition_no = p.partition_no AND c.stored_at > $3::timestamptz AND c.created_at > $3 ORDER BY c.end_position LIMIT 1
  ) AS c ON true
)
SELECT max(name) FROM page HAVING count(*) = $6

-- name: push
SELECT * FROM queue_push($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, follows => $13)

-- name: pop
SELECT * FROM queue_pop($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: pops_are_paused
SELECT pop_paused FROM queue_modes

-- name: ack
SELECT * FROM queue_ack($1, $2, $3, $4, $5, $6, $7, $8)

-- name: bury
SELECT queue_bury($1, $2, $3, $4, $5, $6, 0)

-- name: extend
SELECT * FROM queue_extend($1, $2, $3)

-- name: lock_cursors
-- Locks the cursors under the given leases, and those of the given partitions and consumer groups; at most $4. Returns how many.
SELECT count(pg_advisory_xact_lock(k)) FROM (
  SELECT DISTINCT queue_cursor_lock(partition_no, group_no) AS k FROM (
    SELECT partition_no, group_no FROM queue_cursors WHERE lease_id = ANY ($1::uuid[])
    UNION ALL SELECT partition_no, group_no FROM unnest($2::bigint[], $3::bigint[]) AS w (partition_no, group_no)
  ) AS cursors ORDER BY k LIMIT $4
) AS locks

-- name: live_leases
-- The cursors under those of the given leases that are in force.
SELECT k.partition_no, k.group_no, k.lease_id FROM queue_cursors AS k
WHERE k.lease_id = ANY ($1::uuid[]) AND k.lease_until > $2
  AND k.version = (
    SELECT s.version FROM queue_cursors AS s
    WHERE s.partition_no = k.partition_no AND s.group_no = k.group_no ORDER BY s.version DESC LIMIT 1
  )

-- name: waiting
-- Of the next $6 partitions after the name $5, or of the one named $4, those in which messages wait for a consumer group, and until when
-- another consumer, or a retry, holds them back; and the last that was looked at, if there may be further ones.
WITH page AS MATERIALIZED (
  SELECT partition_no, name, floor FROM queue_partitions
  WHERE queue_no = $1 AND ($4::text IS NULL OR name = $4) AND name > $5 ORDER BY name LIMIT $6
)
SELECT l.last, w.partition_nos, w.untils
FROM (SELECT CASE WHEN count(*) = $6 THEN max(name) END AS last FROM page) AS l
CROSS JOIN (
  SELECT array_agg(p.partition_no ORDER BY p.partition_no) AS partition_nos,
    array_agg(greatest(s.lease_until, s.retry_at) ORDER BY p.partition_no) AS untils
  FROM page AS p
  CROSS JOIN LATERAL queue_newest(p.partition_no, date_bin('1 day', $3::timestamptz, 'epoch')) AS n
  LEFT JOIN LATERAL (
    SELECT position, lease_until, retry_at FROM queue_cursors AS k
    WHERE k.partition_no = p.partition_no AND k.group_no = $2 ORDER BY k.version DESC LIMIT 1
  ) AS s ON true
  WHERE n.end_position > greatest(s.position, p.floor)
) AS w
