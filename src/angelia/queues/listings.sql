-- name: queues
-- Queues with their figures, newest first.
SELECT q.queue_id AS id, q.name, q.namespace, q.task, q.created_at, count(p.partition_no) AS partitions, coalesce(sum(f.total), 0)::bigint AS total,
  coalesce(sum({pending}), 0)::bigint AS pending, coalesce(sum(f.processing), 0)::bigint AS processing, coalesce(sum(f.evicted), 0)::bigint AS evicted
FROM (
  SELECT * FROM queues
  WHERE ($2::text IS NULL OR strpos(lower(name), lower($2)) > 0) AND ($3::text IS NULL OR namespace = $3) AND ($4::text IS NULL OR task = $4)
  ORDER BY created_at DESC, queue_no DESC LIMIT $5 OFFSET $6
) AS q
LEFT JOIN (queue_partitions AS p {figures}) ON p.queue_no = q.queue_no
GROUP BY q.queue_no, q.queue_id, q.name, q.namespace, q.task, q.created_at
ORDER BY q.created_at DESC, q.queue_no DESC

-- name: partitions
-- Partitions with their figures, by queue and name.
SELECT p.partition_id AS id, p.name, q.name AS queue, p.created_at, f.total, {pending} AS pending, f.processing, f.completed, f.failed, f.dead_letter, f.evicted,
  oldest.created_at AS oldest_message, CASE WHEN f.total > 0 THEN n.created_at END AS newest_message
FROM queues AS q JOIN queue_partitions AS p ON p.queue_no = q.queue_no
{figures}
LEFT JOIN LATERAL (
  SELECT c.created_at FROM queue_chunks AS c
  WHERE c.partition_no = p.partition_no AND c.end_position > lower(k.kept) AND c.stored_at >= coalesce(p.floor_at, '-infinity')
  ORDER BY c.end_position LIMIT 1
) AS oldest ON f.total > 0
WHERE ($2::text IS NULL OR q.name = $2)
ORDER BY q.name, p.name LIMIT $3 OFFSET $4

-- name: namespaces
SELECT q.namespace, count(DISTINCT q.queue_no) AS queues, count(p.partition_no) AS partitions, coalesce(sum(f.total), 0)::bigint AS total,
  coalesce(sum({pending}), 0)::bigint AS pending
FROM queues AS q LEFT JOIN (queue_partitions AS p {figures}) ON p.queue_no = q.queue_no
GROUP BY q.namespace ORDER BY q.namespace

-- name: tasks
SELECT q.task, count(DISTINCT q.queue_no) AS queues, count(p.partition_no) AS partitions, coalesce(sum(f.total), 0)::bigint AS total,
  coalesce(sum({pending}), 0)::bigint AS pending
FROM queues AS q LEFT JOIN (queue_partitions AS p {figures}) ON p.queue_no = q.queue_no
GROUP BY q.task ORDER BY q.task

-- name: totals
-- The figures of all queues, or of those of a name, namespace or task.
SELECT count(DISTINCT q.queue_no) AS queues, count(p.partition_no) AS partitions, count(DISTINCT q.namespace) FILTER (WHERE q.namespace <> '') AS namespaces,
  count(DISTINCT q.task) FILTER (WHERE q.task <> '') AS tasks, coalesce(sum(f.total), 0)::bigint AS total, coalesce(sum({pending}), 0)::bigint AS pending,
  coalesce(sum(f.processing), 0)::bigint AS processing, coalesce(sum(f.completed), 0)::bigint AS completed, coalesce(sum(f.failed), 0)::bigint AS failed,
  coalesce(sum(f.dead_letter), 0)::bigint AS dead_letter, coalesce(sum(f.evicted), 0)::bigint AS evicted
FROM queues AS q LEFT JOIN (queue_partitions AS p {figures}) ON p.queue_no = q.queue_no
WHERE ($2::text IS NULL OR q.name = $2) AND ($3::text IS NULL OR q.namespace = $3) AND ($4::text IS NULL OR q.task = $4)

-- name: lags
-- How far consumer groups are behind, over all their partitions: in seconds and in messages.
SELECT coalesce(avg(w.seconds), 0)::float8 AS time_avg, coalesce(max(w.seconds), 0)::float8 AS time_max, coalesce(min(w.seconds), 0)::float8 AS time_min,
  coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY w.seconds), 0)::float8 AS time_median,
  coalesce(avg(w.messages), 0)::float8 AS offset_avg, coalesce(max(w.messages), 0)::float8 AS offset_max, coalesce(min(w.messages), 0)::float8 AS offset_min,
  coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY w.messages), 0)::float8 AS offset_median
FROM (
  SELECT coalesce(greatest(0, extract(epoch FROM $1 - oldest.created_at)), 0)::float8 AS seconds, queue_count(o.messages) AS messages
  FROM queue_groups AS g JOIN queue_partitions AS p ON p.queue_no = g.queue_no
  {open}
  {oldest_open}
) AS w

-- name: rates
-- Messages in and out of queues since a minute.
SELECT coalesce(sum(m.pushed), 0)::bigint AS pushed, coalesce(sum(m.completed + m.dead), 0)::bigint AS settled FROM queue_minutes AS m WHERE m.minute >= $1

-- name: depth
-- What a consumer group has still to consume, by partition; of a group that does not exist, all messages.
SELECT p.name AS partition, queue_count(o.messages) AS pending
FROM queues AS q JOIN queue_partitions AS p ON p.queue_no = q.queue_no
LEFT JOIN queue_groups AS g ON g.queue_no = q.queue_no AND g.name = $2
{open}
WHERE q.name = $1 AND NOT isempty(o.messages) ORDER BY p.name

-- name: overviews
-- A page of queues by name, with what their operator looks at first.
SELECT q.queue_id AS id, q.name, q.namespace, q.task, q.created_at, q.options, w.partitions, w.pending, w.leased, d.dead, m.pushed, m.settled, m.recently_settled, w.oldest_at
FROM (
  SELECT * FROM queues
  WHERE ($3::text IS NULL OR name > $3) AND ($4::text IS NULL OR starts_with(name, $4)) AND ($5::text IS NULL OR namespace = $5)
    AND ($6::text IS NULL OR task = $6) AND ($7::text IS NULL OR name = $7)
  ORDER BY name LIMIT $8
) AS q
CROSS JOIN LATERAL (
  SELECT count(*) AS partitions, coalesce(sum({pending}), 0)::bigint AS pending, coalesce(sum(f.processing), 0)::bigint AS leased,
    min(oldest.created_at) AS oldest_at
  FROM queue_partitions AS p {figures}
  -- The first message that waits or is leased.
  LEFT JOIN LATERAL (
    SELECT c.created_at FROM queue_chunks AS c
    WHERE c.partition_no = p.partition_no AND c.end_position > lower(k.kept - m1.evicted - m2.dead - m3.completed)
      AND c.stored_at >= coalesce(p.floor_at, '-infinity')
    ORDER BY c.end_position LIMIT 1
  ) AS oldest ON {pending} + f.processing > 0
  WHERE p.queue_no = q.queue_no
) AS w
CROSS JOIN LATERAL (SELECT count(*) AS dead FROM queue_dead_letters AS d WHERE d.queue_no = q.queue_no) AS d
CROSS JOIN LATERAL (
  SELECT coalesce(sum(m.pushed) FILTER (WHERE m.minute >= $2), 0)::bigint AS pushed,
    coalesce(sum(m.completed + m.dead) FILTER (WHERE m.minute >= $2), 0)::bigint AS settled,
    coalesce(sum(m.completed + m.dead), 0)::bigint AS recently_settled
  FROM queue_minutes AS m WHERE m.queue_no = q.queue_no AND m.minute >= $1::timestamptz - interval '6 minutes'
) AS m
ORDER BY q.name

-- name: count_queues
SELECT count(*) FROM queues
WHERE ($1::text IS NULL OR starts_with(name, $1)) AND ($2::text IS NULL OR namespace = $2) AND ($3::text IS NULL OR task = $3)

-- name: groups
-- Consumer groups, one row for each and its queue; a member is a consumer that holds a lease.
SELECT g.name, q.name AS queue_name, g.mode, g.from_at, g.created_at, w.*
FROM queue_groups AS g JOIN queues AS q ON q.queue_no = g.queue_no
CROSS JOIN LATERAL (
  SELECT count(DISTINCT s.lease_id) FILTER (WHERE s.lease_until > $1) AS members, coalesce(sum(queue_count(o.messages)), 0)::bigint AS total_lag,
    coalesce(max(greatest(0, extract(epoch FROM $1 - oldest.created_at))), 0)::bigint AS max_time_lag,
    count(*) FILTER (WHERE NOT isempty(o.messages)) AS partitions_with_lag, coalesce(sum(s.consumed), 0)::bigint AS consumed,
    max(s.consumed_at) AS consumed_at
  FROM queue_partitions AS p {open} {oldest_open}
  WHERE p.queue_no = g.queue_no
) AS w
WHERE ($2::text IS NULL OR q.name = $2)
ORDER BY g.name, q.name

-- name: group_exists
SELECT EXISTS (SELECT FROM queue_groups WHERE name = $1)

-- name: group_partitions
-- How far consumer groups are in each partition: those of a name, or those that are behind by so many seconds.
SELECT g.name AS group_name, q.name AS queue_name, p.name AS partition_name, p.partition_id, CASE WHEN s.lease_until > $1 THEN s.leased_by END AS worker,
  coalesce(s.lease_until > $1, false) AS leased, CASE WHEN s.lease_until > $1 THEN s.lease_until END AS lease_until, queue_count(o.messages) AS lag,
  coalesce(greatest(0, extract(epoch FROM $1 - oldest.created_at)), 0)::bigint AS seconds, oldest.created_at AS oldest_at,
  coalesce(s.consumed, 0) AS consumed, s.consumed_at, coalesce(s.attempts, 0) AS attempts
FROM queue_groups AS g JOIN queues AS q ON q.queue_no = g.queue_no JOIN queue_partitions AS p ON p.queue_no = g.queue_no
{open}
{oldest_open}
WHERE ($2::text IS NULL OR g.name = $2) AND ($3::text IS NULL OR q.name = $3)
  AND ($4::bigint IS NULL OR oldest.created_at <= $1::timestamptz - $4 * interval '1 second')
ORDER BY oldest.created_at, g.name, q.name, p.name
