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
DELETE FROM queue_ids WHERE ctid = ANY (ARRAY(
  SELECT d.tuple FROM unnest($1::bigint[]) AS w (partition_no)
  CROSS JOIN LATERAL (SELECT ctid AS tuple FROM queue_ids AS t WHERE t.partition_no = w.partition_no LIMIT $2) AS d LIMIT $2
))

-- name: leave_cursors
DELETE FROM queue_cursors WHERE ctid = ANY (ARRAY(
  SELECT d.tuple FROM unnest($1::bigint[]) AS w (partition_no)
  CROSS JOIN LATERAL (SELECT ctid AS tuple FROM queue_cursors AS t WHERE t.partition_no = w.partition_no LIMIT $2) AS d LIMIT $2
))

-- name: leave_letters
DELETE FROM queue_dead_letters WHERE ctid = ANY (ARRAY(
  SELECT d.tuple FROM unnest($1::bigint[]) AS w (partition_no)
  CROSS JOIN LATERAL (SELECT ctid AS tuple FROM queue_dead_letters AS t WHERE t.partition_no = w.partition_no LIMIT $2) AS d LIMIT $2
))

-- name: leave_traces
DELETE FROM queue_traces WHERE ctid = ANY (ARRAY(
  SELECT d.tuple FROM unnest($1::bigint[]) AS w (partition_no)
  CROSS JOIN LATERAL (SELECT ctid AS tuple FROM queue_traces AS t WHERE t.partition_no = w.partition_no LIMIT $2) AS d LIMIT $2
))

-- name: leave_hidden
DELETE FROM queue_hidden WHERE ctid = ANY (ARRAY(
  SELECT d.tuple FROM unnest($1::bigint[]) AS w (partition_no)
  CROSS JOIN LATERAL (SELECT ctid AS tuple FROM queue_hidden AS t WHERE t.partition_no = w.partition_no LIMIT $2) AS d LIMIT $2
))

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
-- Looks at the next $5 ids of a partition in the order of their hashes, and removes those of messages before a position. They are removed
-- by their addresses: with the statistics of an empty table, a join reads the whole partition for each of them.
WITH seen AS MATERIALIZED (
  SELECT ctid AS tuple, hash, position FROM queue_ids WHERE partition_no = $1 AND (hash, position) > ($2, $3) ORDER BY hash, position LIMIT $5
), gone AS (
  DELETE FROM queue_ids WHERE ctid = ANY (ARRAY(SELECT tuple FROM seen WHERE position < $4))
)
SELECT hash, position, (SELECT count(*) FROM seen) AS count FROM seen ORDER BY hash DESC, position DESC LIMIT 1

-- name: prune_traces
DELETE FROM queue_traces WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM queue_traces WHERE partition_no = $1 AND position < $2 ORDER BY position LIMIT $3
))

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

-- name: forget_expected
DELETE FROM queue_expected WHERE ctid = ANY (ARRAY(SELECT ctid FROM queue_expected WHERE since < $1 ORDER BY since LIMIT $2))
