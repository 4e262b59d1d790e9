-- name: lock
-- For those who take chunks out of the tables of days: one at a time.
SELECT pg_advisory_xact_lock(hashtextextended('angelia/days of queue_chunks', 0))

-- name: tables
SELECT right(c.relname, 8) AS day FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = 'queue_chunks'::regclass AND c.relname ~ '_[0-9]{8}$' ORDER BY 1

-- name: note
-- Days that are old now, and no longer those that are gone.
WITH gone AS (DELETE FROM queue_days WHERE NOT day = ANY ($1::date[]))
INSERT INTO queue_days (day, look_at) SELECT day, $2 FROM unnest($1::date[]) AS w (day) ON CONFLICT DO NOTHING

-- name: due
SELECT day, copying, partition_no, survivors, copied_bytes FROM queue_days WHERE look_at <= $1 ORDER BY day LIMIT 1

-- name: update
UPDATE queue_days SET look_at = $2, copying = $3, partition_no = $4, survivors = $5, copied_bytes = $6 WHERE day = $1

-- name: size
-- Without statistics, the number of chunks is -1.
SELECT reltuples::bigint AS chunks, pg_total_relation_size(oid) AS bytes FROM pg_class WHERE oid = to_regclass($1)

-- name: count_anew
ANALYZE {table}

-- part: walk
-- From partition to partition of a day's table, without the entries between.
walk AS (
  SELECT (SELECT min(t.partition_no) FROM {table} AS t WHERE t.partition_no > $1) AS partition_no, 1 AS n
  UNION ALL
  SELECT (SELECT min(t.partition_no) FROM {table} AS t WHERE t.partition_no > walk.partition_no), walk.n + 1
  FROM walk WHERE walk.partition_no IS NOT NULL AND walk.n < $2
)

-- part: needed
-- Whether its partition needs a chunk: it is there, and has messages of the chunk that may not leave the disk.
t.partition_no = walk.partition_no AND t.end_position > (
  SELECT coalesce(p.purge_floor, p.floor) FROM queue_partitions AS p WHERE p.partition_no = walk.partition_no
)

-- name: look
-- Counts the chunks that the next $2 partitions of a day need, of each partition up to $3.
WITH RECURSIVE {walk}
SELECT count(walk.partition_no) AS partitions, max(walk.partition_no) AS last, coalesce(sum(s.count), 0)::bigint AS survivors
FROM walk CROSS JOIN LATERAL (SELECT count(*) AS count FROM (SELECT FROM {table} AS t WHERE {needed} LIMIT $3) AS t) AS s

-- name: is_needed
WITH RECURSIVE {walk}
SELECT EXISTS (SELECT FROM walk CROSS JOIN LATERAL (SELECT FROM {table} AS t WHERE {needed} LIMIT 1) AS t)

-- name: copy
-- Moves chunks that are needed to a later day, at most $3, and $4 bytes or a single one. Of each partition the last ones come first:
-- so at any time no chunk was stored before one with lower positions. Pops rely on that when they note from where to read.
WITH RECURSIVE {walk}, found AS (
  SELECT t.* FROM walk CROSS JOIN LATERAL (
    SELECT t.ctid AS tuple, t.partition_no, t.end_position,
      200 + pg_column_size(t.body) + pg_column_size(t.transaction_ids) + coalesce(pg_column_size(t.trace_ids), 0) + pg_column_size(t.ends) AS size
    FROM {table} AS t WHERE {needed} ORDER BY t.end_position DESC LIMIT $3
  ) AS t
), picked AS MATERIALIZED (
  SELECT tuple, size FROM (
    SELECT tuple, size, row_number() OVER positions AS n, sum(size) OVER positions AS total FROM found
    WINDOW positions AS (ORDER BY partition_no, end_position DESC ROWS UNBOUNDED PRECEDING)
  ) AS f
  WHERE n <= $3 AND (n = 1 OR total <= $4)
), moved AS (
  DELETE FROM {table} AS t USING picked WHERE t.ctid = picked.tuple RETURNING t.*
), stored AS (
  INSERT INTO {later} (
    partition_no, end_position, count, stored_at, created_at, first_id, only_group, key_id, producer, transaction_ids, trace_ids, ends, body
  )
  SELECT partition_no, end_position, count, $5, created_at, first_id, only_group, key_id, producer, transaction_ids, trace_ids, ends, body FROM moved
  RETURNING 1
)
SELECT (SELECT count(*) FROM stored) AS chunks, (SELECT count(*) FROM found) AS found, (SELECT coalesce(sum(size), 0) FROM picked)::bigint AS bytes,
  (SELECT max(partition_no) FROM walk) AS last

-- name: hold
-- Nothing is written into the day's table any more. All that reads messages waits while we wait for a lock: not for long.
SET LOCAL lock_timeout = '200ms';
LOCK TABLE {table} IN SHARE MODE

-- name: drop
-- The whole table is locked first: with a lock of the day's table alone, we and a reader could wait for each other.
LOCK TABLE ONLY queue_chunks IN ACCESS EXCLUSIVE MODE;
DROP TABLE {table}

-- name: forget
DELETE FROM queue_days WHERE day = $1

-- name: prune_default
-- Chunks in the default partition that no partition needs; they get no day of their own any more.
DELETE FROM queue_chunks_default AS c USING (
  SELECT c.ctid AS tuple FROM queue_chunks_default AS c
  WHERE c.stored_at < $1 AND NOT EXISTS (
    SELECT FROM queue_partitions AS p WHERE p.partition_no = c.partition_no AND coalesce(p.purge_floor, p.floor) < c.end_position
  )
  LIMIT $2
) AS d WHERE c.ctid = d.tuple
