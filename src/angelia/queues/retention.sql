-- part: configured
-- Partitions with their queues, and the options that are in effect for each.
unnest($1::bigint[]) AS w (partition_no)
CROSS JOIN LATERAL (SELECT * FROM queue_partitions AS p WHERE p.partition_no = w.partition_no LIMIT 1) AS p
CROSS JOIN LATERAL (SELECT * FROM queues AS q WHERE q.queue_no = p.queue_no LIMIT 1) AS q
CROSS JOIN LATERAL (
  SELECT o.options @> '{"retentionEnabled": true}' AS enabled, o.options @> '{"archiveEnabled": true}' AS archive,
    $2::timestamptz - nullif((o.options ->> 'retentionSeconds')::bigint, 0) * interval '1 second' AS expired_at,
    $2::timestamptz - nullif((o.options ->> 'completedRetentionSeconds')::bigint, 0) * interval '1 second' AS completed_at,
    CASE WHEN o.options @> '{"archiveEnabled": true}' THEN $2::timestamptz - interval '7 days' ELSE $2 END
      - nullif((o.options ->> 'completedRetentionSeconds')::bigint, 0) * interval '1 second' AS failed_at,
    $2::timestamptz - nullif((o.options ->> 'partitionRetentionSeconds')::bigint, 0) * interval '1 second' AS idle_at
  FROM (SELECT q.options || p.options AS options) AS o
) AS o

-- name: page
-- Of the next $2 partitions, the first $3 that retention is about; and the last one that was looked at.
WITH looked AS MATERIALIZED (
  SELECT partition_no, queue_no, options, purge_floor FROM queue_partitions WHERE partition_no > $1 ORDER BY partition_no LIMIT $2
)
SELECT (SELECT count(*) FROM looked) AS count, (SELECT max(partition_no) FROM looked) AS last, ARRAY(
    SELECT p.partition_no FROM looked AS p
    CROSS JOIN LATERAL (SELECT q.options FROM queues AS q WHERE q.queue_no = p.queue_no LIMIT 1) AS q
    WHERE (q.options || p.options) @> '{"retentionEnabled": true}' OR p.purge_floor IS NOT NULL
    ORDER BY p.partition_no LIMIT $3
  ) AS partition_nos

-- name: raise_floors
-- Raises the floors of partitions over messages whose time is over, each by $3 messages at most. Times of creation rise with the
-- positions, so it is enough to find the first message that is younger. A row that another transaction holds or has
-- changed is left for the next time.
WITH asked AS MATERIALIZED (
  SELECT p.partition_no, p.queue_no, p.name, q.name AS queue_name, p.floor, p.removed, p.purge_floor, p.quiet_at, o.archive,
    -- From where on messages wait for the archive. What was cleared since does not.
    CASE WHEN o.archive AND p.purge_floor IS NOT NULL AND (
      SELECT 1 FROM queue_hidden AS h WHERE h.partition_no = p.partition_no AND h.position > p.purge_floor ORDER BY h.position LIMIT 1
    ) IS NOT NULL THEN p.purge_floor END AS waits_from,
    -- No message from the floor on was stored before.
    coalesce(greatest(p.floor_at, CASE WHEN p.quiet_end <= p.floor THEN p.quiet_at END), '-infinity') AS since,
    CASE WHEN o.enabled THEN o.expired_at END AS expired_at, CASE WHEN o.enabled THEN o.completed_at END AS completed_at
  FROM {configured}
), bounds AS MATERIALIZED (
  SELECT a.partition_no, a.floor, a.since, b.kind, b.cutoff, b.until, c.position AS consumed
  FROM asked AS a
  -- A consumer group without a cursor has consumed nothing; without groups, the minimum of none is NULL.
  LEFT JOIN LATERAL (
    SELECT min(coalesce(s.position, 0)) AS position FROM queue_groups AS g
    LEFT JOIN LATERAL (
      SELECT k.position FROM queue_cursors AS k
      WHERE k.partition_no = a.partition_no AND k.group_no = g.group_no ORDER BY k.version DESC LIMIT 1
    ) AS s ON true
    WHERE g.queue_no = a.queue_no
  ) AS c ON a.completed_at IS NOT NULL OR a.archive
  CROSS JOIN LATERAL (VALUES
    ('retention', a.expired_at, a.floor + $3), ('completed', CASE WHEN c.position > a.floor THEN a.completed_at END, least(a.floor + $3, c.position + 100000))
  ) AS b (kind, cutoff, until)
  WHERE b.cutoff IS NOT NULL
), reached AS (
  SELECT b.partition_no, coalesce(min(b.consumed), 0) AS consumed, max(m.position) FILTER (WHERE b.kind = 'retention') AS expired,
    max(least(m.position, b.consumed)) FILTER (WHERE b.kind = 'completed' AND m.position IS NOT NULL) AS completed,
    coalesce(bool_and(m.position IS NULL) FILTER (WHERE b.kind = 'retention'), false) AS quiet
  FROM bounds AS b
  LEFT JOIN LATERAL (
    SELECT c.end_position - c.count AS position FROM queue_chunks AS c
    WHERE c.partition_no = b.partition_no AND c.end_position > b.floor AND c.end_position <= b.until
      AND c.stored_at > b.cutoff AND c.created_at > b.cutoff
    ORDER BY c.end_position LIMIT 1
  ) AS younger ON true
  LEFT JOIN LATERAL (
    SELECT c.end_position AS position FROM queue_chunks AS c
    WHERE c.partition_no = b.partition_no AND c.end_position > b.floor AND c.end_position <= b.until AND c.stored_at >= b.since
    ORDER BY c.end_position DESC LIMIT 1
  ) AS last ON younger.position IS NULL
  CROSS JOIN LATERAL (SELECT coalesce(younger.position, last.position) AS position) AS m
  GROUP BY b.partition_no
), held AS MATERIALIZED (
  SELECT a.*, x.consumed, r.expired, r.target, r.quiet,
    coalesce(a.waits_from, CASE WHEN a.archive AND r.target > a.floor THEN a.floor END) AS kept_from
  FROM asked AS a
  LEFT JOIN reached AS x ON x.partition_no = a.partition_no
  CROSS JOIN LATERAL (
    SELECT greatest(a.floor, x.expired) AS expired, greatest(a.floor, x.expired, x.completed) AS target,
      coalesce(x.quiet AND (a.quiet_at IS NULL OR a.quiet_at < $2::timestamptz - interval '8 days'), false) AS quiet
  ) AS r
  CROSS JOIN LATERAL (
    SELECT FROM queue_partitions AS p
    WHERE p.partition_no = a.partition_no AND p.floor = a.floor AND p.removed = a.removed AND p.purge_floor IS NOT DISTINCT FROM a.purge_floor
    FOR NO KEY UPDATE SKIP LOCKED
  ) AS locked
  WHERE r.target > a.floor OR r.quiet OR a.purge_floor IS DISTINCT FROM a.waits_from
), raised AS (
  UPDATE queue_partitions AS p SET
    floor = h.target,
    floor_at = greatest(p.floor_at, c.created_at),
    -- The archive asks which of the messages that wait for it were deleted or evicted.
    removed = p.removed - int8multirange(int8range(NULL, coalesce(h.kept_from, h.target))),
    evicted = p.evicted - int8multirange(int8range(NULL, coalesce(h.kept_from, h.target))),
    purge_floor = h.kept_from,
    quiet_end = CASE WHEN h.quiet THEN h.floor ELSE p.quiet_end END,
    -- A push that began yesterday may still be on its way.
    quiet_at = CASE WHEN h.quiet THEN date_bin('1 day', $2, 'epoch') - interval '1 day' ELSE p.quiet_at END
  FROM held AS h
  LEFT JOIN LATERAL (
    SELECT c.created_at FROM queue_chunks AS c
    WHERE c.partition_no = h.partition_no AND c.end_position >= h.target AND c.stored_at >= h.since ORDER BY c.end_position LIMIT 1
  ) AS c ON h.target > h.floor
  WHERE p.partition_no = h.partition_no
  RETURNING h.*
), hidden AS (
  INSERT INTO queue_hidden (partition_no, position, hidden_at, consumed)
  SELECT partition_no, target, $2, consumed FROM raised WHERE archive AND target > floor
), noted AS (
  INSERT INTO queue_retention_history (at, queue_name, partition_no, partition_name, kind, count)
  SELECT $2, r.queue_name, r.partition_no, r.name, k.kind, n.count
  FROM raised AS r
  CROSS JOIN LATERAL (VALUES ('retention', r.floor, r.expired), ('completed', r.expired, r.target)) AS k (kind, first, last)
  CROSS JOIN LATERAL (SELECT k.last - k.first - queue_count(r.removed * int8multirange(int8range(k.first, k.last))) AS count) AS n
  WHERE n.count > 0
  RETURNING partition_no, queue_name, partition_name, kind, count
)
SELECT r.partition_no, r.target - r.floor AS passed, n.queue_name, n.partition_name, n.kind, n.count
FROM raised AS r LEFT JOIN noted AS n ON n.partition_no = r.partition_no WHERE r.target > r.floor

-- name: large_cursors
-- Cursors that know of many settled messages before the floor, and that no pop or acknowledgment is at work on: they are
-- locked.
SELECT k.partition_no, k.group_no
FROM unnest($1::bigint[]) AS w (partition_no)
CROSS JOIN LATERAL (SELECT * FROM queue_partitions AS p WHERE p.partition_no = w.partition_no LIMIT 1) AS p
CROSS JOIN LATERAL (SELECT * FROM queue_cursors AS k WHERE k.partition_no = p.partition_no OFFSET 0) AS k
WHERE CASE WHEN pg_column_size(k.settled) > $2 AND lower(k.settled) < coalesce(p.purge_floor, p.floor)
  THEN pg_try_advisory_xact_lock(queue_cursor_lock(k.partition_no, k.group_no)) END

-- name: trim_cursors
-- Forgets what was settled before the floor, in a new version of each cursor.
WITH old AS MATERIALIZED (
  SELECT k.*, coalesce(p.purge_floor, p.floor) AS floor
  FROM unnest($1::bigint[], $2::bigint[]) AS w (partition_no, group_no)
  CROSS JOIN LATERAL (SELECT * FROM queue_partitions AS p WHERE p.partition_no = w.partition_no LIMIT 1) AS p
  CROSS JOIN LATERAL (
    SELECT * FROM queue_cursors AS k
    WHERE k.partition_no = w.partition_no AND k.group_no = w.group_no ORDER BY k.version DESC LIMIT 1
  ) AS k
), trimmed AS (
  INSERT INTO queue_cursors (
    partition_no, group_no, version, position, settled, passed, attempts, lease_id, lease_end, lease_until, leased_by, ended_lease, retry_at, read_at,
    consumed, consumed_at, changed_at
  )
  SELECT partition_no, group_no, version + 1, position, settled - int8multirange(int8range(NULL, floor)), passed, attempts, lease_id, lease_end,
    lease_until, leased_by, ended_lease, retry_at, read_at, consumed, consumed_at, changed_at
  FROM old
)
DELETE FROM queue_cursors AS k USING old WHERE k.partition_no = old.partition_no AND k.group_no = old.group_no AND k.version = old.version

-- name: remove_letters
-- Removes dead letters that failed long enough ago, at most so many. Those that are archived have a week more: the run that archives
-- them removes them.
WITH due AS (
  SELECT d.letter_no
  FROM {configured}
  CROSS JOIN LATERAL (
    SELECT d.letter_no FROM queue_dead_letters AS d
    WHERE d.partition_no = p.partition_no AND d.failed_at <= o.failed_at ORDER BY d.failed_at LIMIT $3
  ) AS d
  WHERE o.enabled LIMIT $3
), gone AS (
  DELETE FROM queue_dead_letters AS d USING due WHERE d.letter_no = due.letter_no RETURNING d.partition_no
)
INSERT INTO queue_retention_history (at, queue_name, partition_no, partition_name, kind, count)
SELECT $2, q.name, g.partition_no, p.name, 'failed', g.count
FROM (SELECT partition_no, count(*) AS count FROM gone GROUP BY partition_no) AS g
CROSS JOIN LATERAL (SELECT * FROM queue_partitions AS p WHERE p.partition_no = g.partition_no LIMIT 1) AS p
CROSS JOIN LATERAL (SELECT * FROM queues AS q WHERE q.queue_no = p.queue_no LIMIT 1) AS q
RETURNING queue_name, partition_name, kind, count, (
  SELECT (q.options || p.options) @> '{"archiveEnabled": true}' FROM queue_partitions AS p JOIN queues AS q ON q.queue_no = p.queue_no
  WHERE p.partition_no = queue_retention_history.partition_no
) AS unarchived

-- part: is_idle
o.enabled AND p.name <> 'Default' AND greatest(p.created_at, p.floor_at) <= o.idle_at AND p.purge_floor IS NULL
AND (SELECT 1 FROM queue_dead_letters AS d WHERE d.partition_no = p.partition_no ORDER BY d.failed_at LIMIT 1) IS NULL
AND (
  SELECT 1 FROM queue_chunks AS c WHERE c.partition_no = p.partition_no AND c.end_position > p.floor
    AND c.stored_at >= coalesce(greatest(p.floor_at, CASE WHEN p.quiet_end <= p.floor THEN p.quiet_at END), '-infinity')
  ORDER BY c.end_position LIMIT 1
) IS NULL

-- name: idle
-- Empty partitions into which nothing was pushed for long enough.
SELECT p.partition_no FROM {configured} WHERE {is_idle}

-- name: lock_partitions
-- Those of the partitions that no push is at work on; none will be until the transaction ends.
SELECT w.partition_no FROM unnest($1::bigint[]) AS w (partition_no) WHERE pg_try_advisory_xact_lock(queue_partition_lock(w.partition_no))

-- name: delete_idle
-- Deletes those of the partitions that are still idle. A push that waits for its lock finds that its partition is gone.
WITH idle AS MATERIALIZED (
  SELECT p.partition_no, p.name, q.name AS queue_name FROM {configured}
  CROSS JOIN LATERAL (SELECT FROM queue_partitions AS s WHERE s.partition_no = p.partition_no FOR UPDATE SKIP LOCKED) AS locked
  WHERE {is_idle}
), leaving AS (
  INSERT INTO queue_leavings (partition_no) SELECT partition_no FROM idle ON CONFLICT DO NOTHING
), gone AS (
  DELETE FROM queue_partitions AS p USING idle WHERE p.partition_no = idle.partition_no
)
INSERT INTO queue_retention_history (at, queue_name, partition_no, partition_name, kind, count)
SELECT $2, queue_name, partition_no, name, 'partition', 1 FROM idle
RETURNING queue_name, partition_name, kind, count

-- name: give_up_archive
-- Lets messages go that have waited for the archive since before $1. Returns of each partition how many went unarchived.
WITH due AS MATERIALIZED (
  SELECT partition_no, position FROM queue_hidden WHERE hidden_at <= $1 ORDER BY hidden_at LIMIT $2
), gone AS (
  DELETE FROM queue_hidden AS h USING due WHERE h.partition_no = due.partition_no AND h.position = due.position
), held AS MATERIALIZED (
  SELECT p.partition_no, p.queue_no, p.name, p.floor, p.purge_floor, m.position
  FROM (SELECT partition_no, max(position) AS position FROM due GROUP BY partition_no) AS m
  CROSS JOIN LATERAL (
    SELECT * FROM queue_partitions AS p WHERE p.partition_no = m.partition_no AND p.purge_floor < m.position FOR NO KEY UPDATE
  ) AS p
), raised AS (
  UPDATE queue_partitions AS p SET purge_floor = CASE WHEN h.position < h.floor THEN h.position END
  FROM held AS h WHERE p.partition_no = h.partition_no
)
SELECT q.name AS queue_name, h.name AS partition_name, h.position - h.purge_floor AS count
FROM held AS h CROSS JOIN LATERAL (SELECT q.name FROM queues AS q WHERE q.queue_no = h.queue_no LIMIT 1) AS q

-- name: due_for_archive
-- Whether messages have waited so long.
SELECT EXISTS (SELECT FROM queue_hidden WHERE hidden_at <= $1)

-- name: history
SELECT entry_no, at, queue_name, partition_name, kind, count, runs FROM queue_retention_history
WHERE ($1::text IS NULL OR queue_name = $1) AND ($2::timestamptz IS NULL OR at >= $2) AND ($3::timestamptz IS NULL OR at < $3)
ORDER BY at DESC, entry_no DESC LIMIT $4 OFFSET $5
