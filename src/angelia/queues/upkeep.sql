-- name: leavings
-- Deleted partitions; one that nothing was found of comes a second time, after a while: a pop that had begun before the deletion may
-- have left a cursor.
SELECT partition_no FROM queue_leavings WHERE emptied_at IS NULL OR emptied_at <= $1 ORDER BY partition_no LIMIT $2

-- name: leave_chunks
DELETE FROM queue_chunks AS c USING (
  SELECT c.partition_no, c.end_position, c.stored_at FROM unnest($1::bigint[]) AS w (partition_no)
  CROSS JOIN LATERAL (
    SELECT c.partition_no, c.end_position, c.stored_at FROM queue_chunks AS c WHERE c.partition_no = w.partition_no LIMIT $2
  ) AS c LIMIT $2
) AS d
WHERE c.partition_no = d.partition_no AND c.end_position = d.end_position AND c.stored_at = d.stored_at

-- name: leave_ids
DELETE FROM queue_ids AS i USING (
  SELECT i.* FROM unnest($1::bigint[]) AS w (partition_no)
  CROSS JOIN LATERAL (SELECT * FROM queue_ids AS i WHERE i.partition_no = w.partition_no LIMIT $2) AS i LIMIT $2
) AS d
WHERE i.partition_no = d.partition_no AND i.hash = d.hash AND i.position = d.position

-- name: leave_cursors
DELETE FROM queue_cursors AS k USING (
  SELECT k.partition_no, k.group_no, k.version FROM unnest($1::bigint[]) AS w (partition_no)
  CROSS JOIN LATERAL (SELECT * FROM queue_cursors AS k WHERE k.partition_no = w.partition_no LIMIT $2) AS k LIMIT $2
) AS d
WHERE k.partition_no = d.partition_no AND k.group_no = d.group_no AND k.version = d.version

-- name: leave_letters
DELETE FROM queue_dead_letters AS l USING (
  SELECT l.letter_no FROM unnest($1::bigint[]) AS w (partition_no)
  CROSS JOIN LATERAL (SELECT l.letter_no FROM queue_dead_letters AS l WHERE l.partition_no = w.partition_no LIMIT $2) AS l LIMIT $2
) AS d
WHERE l.letter_no = d.letter_no

-- name: leave_traces
DELETE FROM queue_traces AS t USING (
  SELECT t.trace_no FROM unnest($1::bigint[]) AS w (partition_no)
  CROSS JOIN LATERAL (SELECT t.trace_no FROM queue_traces AS t WHERE t.partition_no = w.partition_no LIMIT $2) AS t LIMIT $2
) AS d
WHERE t.trace_no = d.trace_no

-- name: leave_hidden
DELETE FROM queue_hidden AS h USING (
  SELECT h.partition_no, h.position FROM unnest($1::bigint[]) AS w (partition_no)
  CROSS JOIN LATERAL (SELECT * FROM queue_hidden AS h WHERE h.partition_no = w.partition_no LIMIT $2) AS h LIMIT $2
) AS d
WHERE h.partition_no = d.partition_no AND h.position = d.position

-- name: emptied
-- Nothing is left of these partitions. Those of which that was known for a while are forgotten.
WITH gone AS (DELETE FROM queue_leavings WHERE partition_no = ANY ($1::bigint[]) AND emptied_at <= $3)
UPDATE queue_leavings SET emptied_at = $2 WHERE partition_no = ANY ($1::bigint[]) AND emptied_at IS NULL

-- name: outdated_ids
-- Of the next $2 partitions, the first $3 that have at least as many ids of removed messages as of others: so each id is looked at twice at
-- most before it goes.
WITH looked AS MATERIALIZED (
  SELECT partition_no, floor, ids_floor FROM queue_partitions WHERE partition_no > $1 ORDER BY partition_no LIMIT $2
), due AS (
  SELECT p.partition_no, p.floor FROM looked AS p
  CROSS JOIN LATERAL queue_newest(p.partition_no, date_bin('1 day', $4::timestamptz, 'epoch')) AS n
  WHERE p.floor > p.ids_floor AND p.floor - p.ids_floor >= coalesce(n.end_position, 0) - p.floor
  ORDER BY p.partition_no LIMIT $3
)
SELECT (SELECT count(*) FROM looked) AS count, (SELECT max(partition_no) FROM looked) AS last,
  ARRAY(SELECT partition_no FROM due ORDER BY partition_no) AS partition_nos, ARRAY(SELECT floor FROM due ORDER BY partition_no) AS floors

-- name: prune_ids
-- Looks at the next $5 ids of a partition in the order of their hashes, and removes those of messages before a position.
WITH seen AS MATERIALIZED (
  SELECT hash, position FROM queue_ids WHERE partition_no = $1 AND (hash, position) > ($2, $3) ORDER BY hash, position LIMIT $5
), gone AS (
  DELETE FROM queue_ids AS i USING seen AS s
  WHERE s.position < $4 AND i.partition_no = $1 AND i.hash = s.hash AND i.position = s.position
)
SELECT hash, position, (SELECT count(*) FROM seen) AS count FROM seen ORDER BY hash DESC, position DESC LIMIT 1

-- name: prune_traces
DELETE FROM queue_traces AS t USING (
  SELECT t.trace_no FROM queue_traces AS t WHERE t.partition_no = $1 AND t.position < $2 ORDER BY t.position LIMIT $3
) AS d
WHERE t.trace_no = d.trace_no

-- name: pruned
UPDATE queue_partitions SET ids_floor = $2 WHERE partition_no = $1 AND ids_floor < $2

-- name: merge_history
-- Makes the runs of a day one row for each partition and kind, $2 runs at a time.
WITH old AS (
  DELETE FROM queue_retention_history WHERE entry_no = ANY (ARRAY(
    SELECT entry_no FROM queue_retention_history WHERE NOT merged AND at < $1 ORDER BY at LIMIT $2
  ))
  RETURNING *
), merged AS (
  INSERT INTO queue_retention_history AS h (at, queue_name, partition_no, partition_name, kind, count, runs, merged)
  SELECT max(at), queue_name, partition_no, partition_name, kind, sum(count)::bigint, sum(runs)::integer, true
  FROM old GROUP BY queue_name, partition_no, partition_name, kind, (at AT TIME ZONE 'UTC')::date
  ON CONFLICT (partition_no, kind, ((at AT TIME ZONE 'UTC')::date)) WHERE merged DO UPDATE SET
    at = greatest(h.at, excluded.at), count = h.count + excluded.count, runs = h.runs + excluded.runs
)
SELECT count(*) FROM old

-- name: forget_history
DELETE FROM queue_retention_history WHERE entry_no = ANY (ARRAY(
  SELECT entry_no FROM queue_retention_history WHERE at < $1 ORDER BY at LIMIT $2
))

-- name: forget_evictions
DELETE FROM queue_evictions WHERE ctid = ANY (ARRAY(SELECT ctid FROM queue_evictions WHERE hour < $1 ORDER BY hour LIMIT $2))
