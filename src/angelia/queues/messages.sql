-- name: find
-- The newest message of a transaction id that is there: of one that was put back, the copy.
SELECT p.partition_no, p.queue_no, i.position
FROM queue_partitions AS p JOIN queues AS q ON q.queue_no = p.queue_no
CROSS JOIN LATERAL (
  SELECT h.position FROM queue_ids AS h
  CROSS JOIN LATERAL (
    SELECT c.transaction_ids[h.position - c.end_position + c.count + 1] AS transaction_id FROM queue_chunks AS c
    WHERE c.partition_no = p.partition_no AND c.end_position > h.position ORDER BY c.end_position LIMIT 1
  ) AS c
  WHERE h.partition_no = p.partition_no AND h.hash = hashtextextended($2, p.partition_no) AND h.position >= p.floor
    AND NOT p.removed @> h.position AND c.transaction_id = $2
  ORDER BY h.position DESC LIMIT 1
) AS i
WHERE p.partition_id = $1

-- part: status
CASE WHEN w.evicted @> m.position THEN 'evicted' WHEN w.processing @> m.position THEN 'processing' WHEN w.dead @> m.position THEN 'dead_letter'
  WHEN w.completed @> m.position THEN 'completed' ELSE 'pending' END

-- part: readers
-- What consumer groups have done with a message m of a partition w: those that are named, and the one without a name.
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE g.name <> '__QUEUE_MODE__') AS total_groups, count(*) FILTER (WHERE g.name <> '__QUEUE_MODE__' AND e.done) AS consumed_by,
    max(CASE WHEN e.done THEN 'completed' WHEN e.leased THEN 'processing' ELSE 'pending' END) FILTER (WHERE g.name = '__QUEUE_MODE__') AS queue_status,
    max(s.lease_until) FILTER (WHERE e.leased AND NOT e.done) AS lease_until
  FROM queue_groups AS g
  LEFT JOIN LATERAL (
    SELECT k.* FROM queue_cursors AS k WHERE k.partition_no = w.partition_no AND k.group_no = g.group_no ORDER BY k.version DESC LIMIT 1
  ) AS s ON true
  CROSS JOIN LATERAL (
    SELECT coalesce(m.position < s.position OR s.settled @> m.position, false) AS done,
      coalesce(s.lease_until > $1 AND m.position < s.lease_end AND NOT s.passed @> m.position, false) AS leased
  ) AS e
  WHERE g.queue_no = w.queue_no
) AS r

-- name: page
-- Messages that were pushed in a time span, newest first, and their status. Chunks are chosen first, and only those that the page needs are opened.
WITH places AS MATERIALIZED (
  SELECT p.partition_no, p.partition_id, p.name AS partition, p.queue_no, q.name AS queue, q.namespace, q.task, (q.options ->> 'priority')::bigint AS priority,
    m1.evicted, m1.processing, m2.dead, m3.completed,
    CASE $6::text WHEN 'pending' THEN k.kept - m1.evicted - m1.processing - m2.dead - m3.completed WHEN 'processing' THEN m1.processing
      WHEN 'completed' THEN m3.completed WHEN 'dead_letter' THEN m2.dead WHEN 'evicted' THEN m1.evicted ELSE k.kept END AS wanted
  FROM queues AS q JOIN queue_partitions AS p ON p.queue_no = q.queue_no
  {messages}
  WHERE ($2::text IS NULL OR q.name = $2) AND ($3::text IS NULL OR p.name = $3) AND ($4::text IS NULL OR q.namespace = $4) AND ($5::text IS NULL OR q.task = $5)
), chunks AS (
  SELECT w.*, c.*, queue_count(w.wanted * int8multirange(int8range(c.end_position - c.count, c.end_position))) AS messages
  FROM places AS w
  CROSS JOIN LATERAL (
    SELECT c.end_position, c.count, c.created_at, c.first_id, c.producer, c.transaction_ids, c.trace_ids FROM queue_chunks AS c
    WHERE c.partition_no = w.partition_no AND c.stored_at >= $7 AND c.created_at >= $7 AND c.created_at <= $8
      AND w.wanted && int8range(c.end_position - c.count, c.end_position)
    ORDER BY c.end_position DESC LIMIT $9::bigint + $10::bigint
  ) AS c
  ORDER BY c.created_at DESC, w.partition_no, c.end_position DESC LIMIT $9::bigint + $10::bigint
), page AS (
  SELECT w.*, m.position
  FROM (SELECT c.*, sum(c.messages) OVER (ORDER BY c.created_at DESC, c.partition_no, c.end_position DESC) - c.messages AS before FROM chunks AS c) AS w
  CROSS JOIN LATERAL generate_series(w.end_position - 1, w.end_position - w.count, -1) AS m (position)
  WHERE w.before < $9::bigint + $10::bigint AND w.wanted @> m.position
  ORDER BY w.created_at DESC, w.partition_no, m.position DESC LIMIT $9 OFFSET $10
)
SELECT queue_message_id(w.first_id, w.position - w.end_position + w.count) AS id, w.transaction_ids[w.position - w.end_position + w.count + 1] AS transaction_id,
  w.trace_ids[w.position - w.end_position + w.count + 1] AS trace_id, w.partition_id, w.queue, w.partition, w.namespace, w.task, w.priority, w.producer, w.created_at,
  {status} AS status, r.queue_status, r.consumed_by, r.total_groups, r.lease_until
FROM page AS w CROSS JOIN LATERAL (SELECT w.position) AS m
{readers}
ORDER BY w.created_at DESC, w.partition_no, w.position DESC

-- name: mode
-- Whether queues are read by consumers without a group, and by how many named groups.
SELECT coalesce(bool_or(g.name = '__QUEUE_MODE__'), false) AS has_queue_mode, count(DISTINCT g.name) FILTER (WHERE g.name <> '__QUEUE_MODE__') AS groups
FROM queues AS q JOIN queue_groups AS g ON g.queue_no = q.queue_no
WHERE ($1::text IS NULL OR q.name = $1) AND ($2::text IS NULL OR q.namespace = $2) AND ($3::text IS NULL OR q.task = $3)

-- name: detail
WITH w AS (
  SELECT p.partition_no, p.partition_id, p.name AS partition, p.queue_no, q.name AS queue, q.namespace, q.task, (q.options ->> 'priority')::bigint AS priority,
    m1.evicted, m1.processing, m2.dead, m3.completed
  FROM queues AS q JOIN queue_partitions AS p ON p.queue_no = q.queue_no
  {messages}
  WHERE p.partition_no = $2
)
SELECT queue_message_id(c.first_id, c.number) AS id, c.transaction_ids[c.number + 1] AS transaction_id, c.trace_ids[c.number + 1] AS trace_id, w.partition_no,
  w.partition_id, w.queue, w.partition, w.namespace, w.task, w.priority, c.producer, c.created_at, c.key_id,
  substr(c.body, coalesce(c.ends[c.number], 0) + 1, c.ends[c.number + 1] - coalesce(c.ends[c.number], 0)) AS body, {status} AS status,
  r.queue_status, r.consumed_by, r.total_groups, r.lease_until
FROM w CROSS JOIN (SELECT $3::bigint AS position) AS m
CROSS JOIN LATERAL (
  SELECT c.*, (m.position - c.end_position + c.count)::integer AS number FROM queue_chunks AS c
  WHERE c.partition_no = w.partition_no AND c.end_position > m.position ORDER BY c.end_position LIMIT 1
) AS c
{readers}

-- name: readers
-- What each consumer group has done with a message.
SELECT g.name, coalesce($3 < s.position OR s.settled @> $3::bigint, false) AS consumed,
  CASE WHEN s.lease_until > $1 AND $3 >= s.position AND $3 < s.lease_end AND NOT (s.settled + s.passed) @> $3::bigint THEN s.lease_until END AS lease_until,
  CASE WHEN s.position = $3 THEN s.attempts ELSE 0 END AS attempts
FROM queue_partitions AS p JOIN queue_groups AS g ON g.queue_no = p.queue_no
LEFT JOIN LATERAL ({cursor}) AS s ON true
WHERE p.partition_no = $2 ORDER BY g.name

-- name: open_for
-- The consumer groups that have still to consume a message.
SELECT g.group_no, g.name FROM queue_partitions AS p JOIN queue_groups AS g ON g.queue_no = p.queue_no
LEFT JOIN LATERAL ({cursor}) AS s ON true
WHERE p.partition_no = $1 AND coalesce(s.position, 0) <= $2 AND NOT coalesce(s.settled, '{}') @> $2::bigint
  AND NOT EXISTS (SELECT FROM queue_put_back AS b WHERE b.partition_no = p.partition_no AND b.position = $2 AND b.group_no <> g.group_no)
ORDER BY g.name

-- name: remove
-- Deletes one message. Its transaction id is free then.
WITH gone AS (
  DELETE FROM queue_ids WHERE partition_no = $1 AND hash = hashtextextended($3, $1) AND position = $2
)
UPDATE queue_partitions SET removed = removed + int8multirange(int8range($2, $2 + 1)) WHERE partition_no = $1

-- part: bodies
-- The messages of a page, each with its part of the body of its chunk.
SELECT w.partition_no, w.position, queue_message_id(c.first_id, w.number) AS id, c.transaction_ids[w.number + 1] AS transaction_id,
  c.trace_ids[w.number + 1] AS trace_id, c.producer, w.created_at, c.key_id, substr(c.body, w.begins + 1, w.size) AS body
FROM page AS w
CROSS JOIN LATERAL (
  SELECT c.* FROM queue_chunks AS c WHERE c.partition_no = w.partition_no AND c.end_position = w.end_position AND c.stored_at = w.stored_at LIMIT 1
) AS c

-- name: after
-- Messages of a queue, or of one partition, in the order of their times: from a time on, and in the partitions $4 from the positions $5 on.
WITH seen AS MATERIALIZED (SELECT * FROM unnest($4::bigint[], $5::bigint[]) AS s (partition_no, position)),
chosen AS (
  SELECT p.partition_no, m.position, m.number, m.begins, m.ends - m.begins AS size, c.end_position, c.stored_at, c.created_at
  FROM queue_partitions AS p
  LEFT JOIN seen AS s ON s.partition_no = p.partition_no
  CROSS JOIN LATERAL (
    SELECT c.end_position, c.count, c.stored_at, c.created_at, c.ends FROM queue_chunks AS c
    WHERE c.partition_no = p.partition_no AND c.end_position > greatest(p.floor, s.position) AND c.stored_at >= $3 AND c.created_at >= $3
    ORDER BY c.end_position LIMIT $6
  ) AS c
  CROSS JOIN LATERAL (
    SELECT c.end_position - c.count + n AS position, n::integer AS number, CASE WHEN n = 0 THEN 0 ELSE c.ends[n] END AS begins, c.ends[n + 1] AS ends
    FROM generate_series(greatest(c.end_position - c.count, p.floor, s.position) - c.end_position + c.count, c.count - 1) AS n LIMIT $6
  ) AS m
  WHERE p.queue_no = $1 AND ($2::text IS NULL OR p.name = $2) AND NOT p.removed @> m.position
  ORDER BY c.created_at, p.partition_no, m.position LIMIT $6
), page AS (
  SELECT w.*, sum(w.size) OVER (ORDER BY w.created_at, w.partition_no, w.position) - w.size AS before FROM chosen AS w
)
{bodies}
WHERE w.before < $7 ORDER BY w.created_at, w.partition_no, w.position

-- name: any_after
-- Whether the partitions $1 have chunks behind the positions $2, and from the time $3 on.
SELECT EXISTS (
  SELECT FROM unnest($1::bigint[], $2::bigint[]) AS w (partition_no, position)
  CROSS JOIN LATERAL (SELECT p.floor FROM queue_partitions AS p WHERE p.partition_no = w.partition_no LIMIT 1) AS p
  CROSS JOIN LATERAL (
    SELECT FROM queue_chunks AS c
    WHERE c.partition_no = w.partition_no AND c.end_position > greatest(p.floor, w.position) AND c.stored_at >= $3 AND c.created_at >= $3 LIMIT 1
  ) AS c
)

-- name: one_snapshot
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY

-- name: newest
-- The newest messages of a queue or partition, in the order of their times.
WITH chosen AS (
  SELECT p.partition_no, m.position, m.number, m.begins, m.ends - m.begins AS size, c.end_position, c.stored_at, c.created_at
  FROM queue_partitions AS p
  CROSS JOIN LATERAL (
    SELECT c.end_position, c.count, c.stored_at, c.created_at, c.ends FROM queue_chunks AS c
    WHERE c.partition_no = p.partition_no AND c.end_position > p.floor ORDER BY c.end_position DESC LIMIT $3
  ) AS c
  CROSS JOIN LATERAL (
    SELECT c.end_position - c.count + n AS position, n::integer AS number, CASE WHEN n = 0 THEN 0 ELSE c.ends[n] END AS begins, c.ends[n + 1] AS ends
    FROM generate_series(c.count - 1, greatest(c.end_position - c.count, p.floor) - c.end_position + c.count, -1) AS n LIMIT $3
  ) AS m
  WHERE p.queue_no = $1 AND ($2::text IS NULL OR p.name = $2) AND NOT p.removed @> m.position
  ORDER BY c.created_at DESC, p.partition_no DESC, m.position DESC LIMIT $3
), page AS (
  SELECT w.*, sum(w.size) OVER (ORDER BY w.created_at DESC, w.partition_no DESC, w.position DESC) - w.size AS before FROM chosen AS w
)
{bodies}
WHERE w.before < $4 ORDER BY w.created_at, w.partition_no, w.position

-- name: ends
-- The ends of the partitions of a queue, or of one, that have messages since a time; at most so many.
SELECT p.partition_no, n.end_position, n.created_at FROM queue_partitions AS p
CROSS JOIN LATERAL (
  SELECT c.end_position, c.created_at FROM queue_chunks AS c
  WHERE c.partition_no = p.partition_no AND c.stored_at >= $3 ORDER BY c.end_position DESC LIMIT 1
) AS n
WHERE p.queue_no = $1 AND ($2::text IS NULL OR p.name = $2) LIMIT $4
