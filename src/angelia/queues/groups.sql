-- name: groups
-- The consumer groups of a name: of all queues, or of one.
SELECT q.name AS queue, g.group_no, g.mode, g.from_at FROM queue_groups AS g JOIN queues AS q ON q.queue_no = g.queue_no
WHERE g.name = $1 AND ($2::text IS NULL OR q.name = $2) ORDER BY q.queue_no

-- name: group_nos
SELECT group_no FROM queue_groups WHERE queue_no = $1 ORDER BY group_no

-- name: partition_page
-- Partitions of a queue, the next so many by name.
SELECT partition_no, name FROM queue_partitions WHERE queue_no = $1 AND name > $2 ORDER BY name LIMIT $3

-- name: partition_named
SELECT partition_no, name FROM queue_partitions WHERE queue_no = $1 AND name = $2

-- name: lock_cursors
-- Locks the cursors of the partitions $1, each with the consumer group of the same place in $2.
SELECT count(pg_advisory_xact_lock(k)) FROM (
  SELECT queue_cursor_lock(w.p, w.g) AS k FROM unnest($1::bigint[], $2::bigint[]) AS w (p, g) ORDER BY k
) AS locks

-- name: lock_partitions
SELECT count(pg_advisory_xact_lock(k)) FROM (SELECT queue_partition_lock(p) AS k FROM unnest($1::bigint[]) AS p ORDER BY k) AS locks

-- part: moves
-- Where the cursors s of a consumer group $2 in the partitions $1 go: to the first message after the time $3, or to the end. `again` are
-- messages that are delivered then and were not to be delivered before, `skipped` the other way round.
unnest($1::bigint[]) AS w (partition_no)
JOIN queue_partitions AS p ON p.partition_no = w.partition_no
LEFT JOIN LATERAL (
  SELECT k.* FROM queue_cursors AS k WHERE k.partition_no = p.partition_no AND k.group_no = $2 ORDER BY k.version DESC LIMIT 1
) AS s ON true
LEFT JOIN LATERAL (
  SELECT c.end_position, c.created_at FROM queue_chunks AS c WHERE c.partition_no = p.partition_no ORDER BY c.end_position DESC LIMIT 1
) AS n ON true
LEFT JOIN LATERAL (
  SELECT c.end_position - c.count AS begins, c.stored_at FROM queue_chunks AS c
  WHERE c.partition_no = p.partition_no AND c.end_position > p.floor AND c.stored_at > $3::timestamptz AND c.created_at > $3 ORDER BY c.end_position LIMIT 1
) AS c ON true
LEFT JOIN LATERAL (
  SELECT range_agg(int8range(b.position, b.position + 1)) AS others FROM queue_put_back AS b WHERE b.partition_no = p.partition_no AND b.group_no <> $2
) AS b ON true
CROSS JOIN LATERAL (SELECT greatest(p.floor, coalesce(c.begins, n.end_position)) AS position, coalesce(c.stored_at, n.created_at) AS read_at) AS t
CROSS JOIN LATERAL (
  SELECT int8multirange(int8range(p.floor, greatest(p.floor, n.end_position))) - p.removed - p.evicted - coalesce(b.others, '{}') AS kept OFFSET 0
) AS e
CROSS JOIN LATERAL (
  SELECT e.kept - int8multirange(int8range(0, coalesce(s.position, 0))) - coalesce(s.settled, '{}') AS before,
    e.kept - int8multirange(int8range(0, t.position)) AS after OFFSET 0
) AS o
-- Not read yet: nothing was ever settled or is leased.
WHERE NOT $4 OR s.version IS NULL OR s.consumed = 0 AND s.lease_id IS NULL

-- name: count_moves
SELECT count(*) AS partitions, coalesce(sum(queue_count(o.after - o.before)), 0)::bigint AS again,
  coalesce(sum(queue_count(o.before - o.after)), 0)::bigint AS skipped, max(t.position) AS position
FROM {moves}

-- name: move_cursors
-- Ends the leases, too.
WITH moves AS MATERIALIZED (
  SELECT p.partition_no, s.version, t.position, t.read_at, s.settled, s.consumed, s.consumed_at, queue_count(o.after - o.before) AS again,
    queue_count(o.before - o.after) AS skipped
  FROM {moves}
), moved AS (
  INSERT INTO queue_cursors (partition_no, group_no, version, position, settled, passed, attempts, read_at, consumed, consumed_at, changed_at)
  SELECT partition_no, $2, coalesce(version, 0) + 1, position,
    coalesce(settled, '{}') - int8multirange(int8range(position, NULL)), '{}', 0, read_at, coalesce(consumed, 0), consumed_at, $5
  FROM moves
), replaced AS (
  DELETE FROM queue_cursors AS k USING moves AS m WHERE k.partition_no = m.partition_no AND k.group_no = $2 AND k.version <= m.version
)
SELECT count(*) AS partitions, coalesce(sum(again), 0)::bigint AS again, coalesce(sum(skipped), 0)::bigint AS skipped, max(position) AS position
FROM moves

-- name: set_subscription
UPDATE queue_groups SET mode = $2, from_at = $3 WHERE group_no = $1

-- name: delete_group
DELETE FROM queue_groups WHERE group_no = $1

-- name: delete_letters
-- Looks at the next $5 dead letters of a queue, newest first, before the time $3 and the number $4, and deletes those of a consumer group.
-- Returns how many these were, and the last that was looked at, if there may be further ones.
WITH looked AS MATERIALIZED (
  SELECT letter_no, failed_at, group_no FROM queue_dead_letters
  WHERE queue_no = $1 AND (failed_at, letter_no) < ($3::timestamptz, $4::bigint) ORDER BY failed_at DESC, letter_no DESC LIMIT $5
), deleted AS (
  DELETE FROM queue_dead_letters AS d USING looked AS l WHERE l.group_no = $2 AND d.letter_no = l.letter_no RETURNING d.letter_no
)
SELECT n.deleted, e.failed_at, e.letter_no FROM (SELECT count(*) AS deleted FROM deleted) AS n
LEFT JOIN (SELECT failed_at, letter_no FROM looked ORDER BY failed_at DESC, letter_no DESC OFFSET $5 - 1) AS e ON true

-- name: forget_cursors
WITH gone AS (DELETE FROM queue_cursors WHERE partition_no = ANY ($1::bigint[]) AND group_no = $2 RETURNING partition_no)
SELECT count(DISTINCT partition_no) FROM gone

-- name: clear
-- Hides all messages of partitions, which are locked.
WITH cleared AS (
  SELECT p.partition_no, n.end_position, n.created_at, queue_count(int8multirange(int8range(p.floor, n.end_position)) - p.removed) AS messages
  FROM queue_partitions AS p
  CROSS JOIN LATERAL (
    SELECT c.end_position, c.created_at FROM queue_chunks AS c WHERE c.partition_no = p.partition_no ORDER BY c.end_position DESC LIMIT 1
  ) AS n
  WHERE p.partition_no = ANY ($1::bigint[]) AND n.end_position > p.floor
), hidden AS (
  UPDATE queue_partitions AS p SET floor = c.end_position, floor_at = c.created_at,
    removed = CASE WHEN p.purge_floor IS NULL THEN '{}' ELSE p.removed END, evicted = CASE WHEN p.purge_floor IS NULL THEN '{}' ELSE p.evicted END
  FROM cleared AS c WHERE c.partition_no = p.partition_no
)
SELECT coalesce(sum(messages), 0)::bigint FROM cleared

-- name: behind_floor
-- Cursors in the partitions $1 that lie before the floor: the next $4 after the partition $2 and the consumer group $3.
SELECT k.partition_no, k.group_no FROM queue_cursors AS k JOIN queue_partitions AS p ON p.partition_no = k.partition_no
WHERE k.partition_no = ANY ($1::bigint[]) AND (k.partition_no, k.group_no) > ($2::bigint, $3::bigint) AND k.position < p.floor
ORDER BY k.partition_no, k.group_no LIMIT $4

-- name: move_to_floor
-- Moves the cursors of the partitions $1, each with the consumer group of the same place in $2, to the floor, if they lie before it, and ends
-- their leases. They are locked.
WITH moves AS MATERIALIZED (
  SELECT s.*, p.floor, p.floor_at
  FROM unnest($1::bigint[], $2::bigint[]) AS w (partition_no, group_no)
  JOIN queue_partitions AS p ON p.partition_no = w.partition_no
  CROSS JOIN LATERAL (
    SELECT k.* FROM queue_cursors AS k WHERE k.partition_no = w.partition_no AND k.group_no = w.group_no ORDER BY k.version DESC LIMIT 1
  ) AS s
  WHERE s.position < p.floor
), moved AS (
  INSERT INTO queue_cursors (partition_no, group_no, version, position, settled, passed, attempts, read_at, consumed, consumed_at, changed_at)
  SELECT partition_no, group_no, version + 1, floor, settled, '{}', 0, floor_at, consumed, consumed_at, $3 FROM moves
)
DELETE FROM queue_cursors AS k USING moves AS m
WHERE k.partition_no = m.partition_no AND k.group_no = m.group_no AND k.version <= m.version

-- name: lock_queue
SELECT pg_advisory_xact_lock(queue_lock($1))

-- name: delete_queue
-- What else there is of its partitions is removed later, in small batches.
WITH partitions AS (DELETE FROM queue_partitions WHERE queue_no = $1 RETURNING partition_no),
  leaving AS (INSERT INTO queue_leavings (partition_no) SELECT partition_no FROM partitions ON CONFLICT DO NOTHING),
  groups AS (DELETE FROM queue_groups WHERE queue_no = $1)
DELETE FROM queues WHERE queue_no = $1
