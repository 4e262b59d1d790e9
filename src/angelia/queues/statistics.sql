-- part: chosen
-- The minutes of a time span, of the queues that a filter chooses.
queue_minutes AS m JOIN queues AS q ON q.queue_no = m.queue_no
WHERE m.minute >= $1 AND m.minute <= $2 AND ($3::text IS NULL OR q.name = $3) AND ($4::text IS NULL OR q.namespace = $4) AND ($5::text IS NULL OR q.task = $5)

-- part: sums
coalesce(sum(m.pushed), 0)::bigint AS pushed, coalesce(sum(m.pushed_bytes), 0)::bigint AS pushed_bytes, coalesce(sum(m.popped), 0)::bigint AS popped,
  coalesce(sum(m.completed), 0)::bigint AS completed, coalesce(sum(m.failed), 0)::bigint AS failed, coalesce(sum(m.dead), 0)::bigint AS dead,
  coalesce(sum(m.evicted), 0)::bigint AS evicted, coalesce(sum(m.waited_ms) / nullif(sum(m.popped), 0), 0)::bigint AS waited_ms,
  coalesce(max(m.waited_most_ms), 0)::bigint AS waited_most_ms

-- name: series
-- What happened, in steps of $6, newest first.
SELECT date_bin($6, m.minute, 'epoch') AS at, {sums} FROM {chosen} GROUP BY at ORDER BY at DESC

-- name: queue_series
-- The same for each queue.
SELECT date_bin($6, m.minute, 'epoch') AS at, q.name AS queue, {sums} FROM {chosen} GROUP BY at, q.name ORDER BY at DESC, q.name

-- name: sums
SELECT {sums} FROM {chosen}

-- name: points
-- Messages that were pushed, in steps of $6; steps in which none was have 0.
SELECT s.at, coalesce(sum(w.pushed), 0)::bigint AS messages
FROM generate_series(date_bin($6, $1, 'epoch'), $2, $6) AS s (at)
LEFT JOIN (SELECT date_bin($6, m.minute, 'epoch') AS at, m.pushed FROM {chosen}) AS w ON w.at = s.at
GROUP BY s.at ORDER BY s.at

-- name: leases
-- The leases in force, and of their messages from the first that is not settled on: how many there are, and how many are settled.
SELECT count(DISTINCT s.lease_id) AS active, count(DISTINCT s.partition_no) AS partitions, coalesce(sum(queue_count(s.messages)), 0)::bigint AS messages,
  coalesce(sum(queue_count(s.messages * s.settled)), 0)::bigint AS settled
FROM (
  SELECT k.partition_no, k.lease_id, k.settled, int8multirange(int8range(k.position, greatest(k.position, k.lease_end))) - k.passed AS messages
  FROM queue_cursors AS k JOIN queue_groups AS g ON g.group_no = k.group_no JOIN queues AS q ON q.queue_no = g.queue_no
  WHERE k.lease_id IS NOT NULL AND k.lease_until > $1 AND ($2::text IS NULL OR q.name = $2) AND ($3::text IS NULL OR q.namespace = $3)
    AND ($4::text IS NULL OR q.task = $4)
    AND NOT EXISTS (SELECT FROM queue_cursors AS n WHERE n.partition_no = k.partition_no AND n.group_no = k.group_no AND n.version > k.version)
) AS s

-- part: letters
queue_dead_letters AS d JOIN queues AS q ON q.queue_no = d.queue_no
WHERE ($1::text IS NULL OR q.name = $1) AND ($2::text IS NULL OR q.namespace = $2) AND ($3::text IS NULL OR q.task = $3)

-- name: letters
SELECT count(*) AS messages, count(DISTINCT d.partition_no) AS partitions FROM {letters}

-- name: top_errors
SELECT d.error, count(*) AS count FROM {letters} GROUP BY d.error ORDER BY count(*) DESC, d.error LIMIT 5

-- name: consumed
-- How many messages consumer groups have ever settled, by queue.
SELECT q.queue_id AS id, q.name, q.namespace, q.task, count(DISTINCT p.partition_no) AS partitions, coalesce(sum(s.consumed), 0)::bigint AS total_consumed
FROM queues AS q
LEFT JOIN (
  queue_partitions AS p LEFT JOIN queue_groups AS g ON g.queue_no = p.queue_no LEFT JOIN LATERAL ({cursor}) AS s ON true
) ON p.queue_no = q.queue_no
WHERE ($1::text IS NULL OR q.name = $1) AND ($2::text IS NULL OR q.namespace = $2) AND ($3::text IS NULL OR q.task = $3)
GROUP BY q.queue_no, q.queue_id, q.name, q.namespace, q.task ORDER BY q.name

-- name: workers
-- What processes did and used in a time span, in steps of $3, newest first.
SELECT date_bin($3, k.minute, 'epoch') AS at, k.server, k.worker, k.pid, sum(k.pushed)::bigint AS pushed, sum(k.popped)::bigint AS popped,
  sum(k.completed)::bigint AS completed, sum(k.failed)::bigint AS failed, sum(k.dead)::bigint AS dead, sum(k.cpu_user_ms)::bigint AS cpu_user_ms,
  sum(k.cpu_system_ms)::bigint AS cpu_system_ms, (array_agg(k.memory_bytes ORDER BY k.minute DESC))[1] AS memory_bytes,
  (sum(k.loop_ms) / sum(k.samples))::float8 AS loop_ms, max(k.loop_most_ms) AS loop_most_ms, max(k.minute) AS seen_at
FROM queue_workers AS k WHERE k.minute >= $1 AND k.minute <= $2
GROUP BY at, k.server, k.worker, k.pid ORDER BY k.server, k.worker, k.pid, at DESC

-- name: database
SELECT d.datname AS database, d.blks_read AS disk_reads, d.blks_hit AS cache_hits,
  coalesce(round(100.0 * d.blks_hit / nullif(d.blks_hit + d.blks_read, 0), 2), 0)::float8 AS cache_hit_ratio,
  pg_database_size(d.datname) AS size_bytes, d.numbackends AS connections, d.xact_commit AS commits, d.xact_rollback AS rollbacks, d.deadlocks
FROM pg_stat_database AS d WHERE d.datname = current_database()

-- name: tables
-- The tables of queues; those of days count as one.
SELECT w.name AS table, count(*) AS parts, sum(pg_total_relation_size(w.relid))::bigint AS total_bytes, sum(pg_relation_size(w.relid))::bigint AS table_bytes,
  sum(pg_indexes_size(w.relid))::bigint AS index_bytes, sum(w.n_live_tup)::bigint AS live_rows, sum(w.n_dead_tup)::bigint AS dead_rows,
  max(w.last_autovacuum) AS last_autovacuum, sum(w.heap_blks_read)::bigint AS disk_reads, sum(w.heap_blks_hit)::bigint AS cache_hits
FROM (
  SELECT regexp_replace(t.relname, '_(\d{8}|default)$', '') AS name, t.relid, t.n_live_tup, t.n_dead_tup, t.last_autovacuum, i.heap_blks_read, i.heap_blks_hit
  FROM pg_stat_user_tables AS t JOIN pg_statio_user_tables AS i ON i.relid = t.relid
  WHERE t.relname = 'queues' OR starts_with(t.relname, 'queue_')
) AS w
GROUP BY w.name ORDER BY total_bytes DESC, w.name
