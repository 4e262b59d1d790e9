-- What an import reads of Queen's database: tables of its version 0.15, in the schema `queen`. Ids, times and names in braces are
-- filled in by the import: rows are streamed, and the driver streams only statements without parameters.

-- part: message
-- A message `m`. Versions before 0.13 do not know its producer.
m.id::text AS id, m.transaction_id, m.trace_id::text AS trace_id, m.payload::text AS payload, coalesce(m.is_encrypted, false) AS is_encrypted,
  m.created_at, {producer} AS producer

-- part: all_groups
-- The consumer groups of all queues. Queen keeps where a group began only if that was not at the oldest message.
SELECT q.id AS queue_id, q.name AS queue, g.name, s.subscription_mode AS mode, s.subscription_timestamp AS from_at, g.created_at
FROM (
  SELECT queue_id, name, min(created_at) AS created_at
  FROM (
    SELECT p.queue_id, coalesce(c.consumer_group, '{queue_mode}') AS name, c.created_at
    FROM queen.partition_consumers AS c JOIN queen.partitions AS p ON p.id = c.partition_id
    UNION ALL
    SELECT q.id, s.consumer_group, s.created_at
    FROM queen.consumer_groups_metadata AS s JOIN queen.queues AS q ON q.name = s.queue_name
  ) AS n GROUP BY queue_id, name
) AS g
JOIN queen.queues AS q ON q.id = g.queue_id
LEFT JOIN LATERAL (
  SELECT * FROM queen.consumer_groups_metadata AS s
  WHERE s.consumer_group = g.name AND s.queue_name = q.name ORDER BY s.partition_name <> '', s.created_at LIMIT 1
) AS s ON true

-- name: columns
SELECT table_name::text, column_name::text FROM information_schema.columns WHERE table_schema = 'queen'

-- name: horizon
-- A push that is not committed yet has messages of the time when it began, or later. Not all users may see when that was.
SELECT clock_timestamp() AS now, min(xact_start) AS oldest, coalesce(bool_or(query = '<insufficient privilege>'), false) AS unseen
FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()

-- name: queues
SELECT to_jsonb(q)::text AS queue FROM queen.queues AS q ORDER BY q.created_at, q.id

-- name: partitions
-- With their newest messages.
SELECT p.id::text AS id, q.name AS queue, p.name, p.created_at, m.created_at AS newest_at, m.id::text AS newest_id
FROM queen.partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id
LEFT JOIN LATERAL (
  SELECT m.created_at, m.id FROM queen.messages AS m WHERE m.partition_id = p.id ORDER BY m.created_at DESC, m.id DESC LIMIT 1
) AS m ON true
ORDER BY q.name, p.created_at, p.id

-- name: messages
-- The messages of a partition behind one of them, in Queen's order, and before the horizon.
SELECT {message} FROM queen.messages AS m
WHERE m.partition_id = '{partition}' AND (m.created_at, m.id) > ('{at}', '{id}') AND m.created_at < '{horizon}'
ORDER BY m.created_at, m.id

-- name: count_later
SELECT count(*) AS row_count FROM queen.messages WHERE partition_id = '{partition}' AND created_at >= '{horizon}'

-- name: groups
SELECT queue, name, mode, from_at, created_at FROM ({all_groups}) AS g

-- name: cursors
-- How far each group is in each partition, by the transaction ids of the next messages; not where it is to begin with the oldest.
SELECT p.id::text AS partition_id, g.name AS consumer_group, c.last_consumed_created_at IS NOT NULL AS consumed,
  coalesce(c.batch_retry_count, 0) AS attempts, ARRAY(
    SELECT m.transaction_id::text FROM queen.messages AS m
    WHERE m.partition_id = p.id AND (m.created_at, m.id) > (w.at, w.id) AND m.created_at < '{horizon}'
    ORDER BY m.created_at, m.id LIMIT {candidates}
  ) AS next
FROM ({all_groups}) AS g
JOIN queen.partitions AS p ON p.queue_id = g.queue_id
LEFT JOIN queen.partition_consumers AS c ON c.partition_id = p.id AND coalesce(c.consumer_group, '{queue_mode}') = g.name
LEFT JOIN LATERAL (
  SELECT s.subscription_timestamp AS at FROM queen.consumer_groups_metadata AS s
  WHERE s.consumer_group = g.name AND s.queue_name = g.queue AND s.partition_name IN (p.name, '')
  ORDER BY s.partition_name = '' LIMIT 1
) AS s ON true
CROSS JOIN LATERAL (
  SELECT coalesce(c.last_consumed_created_at, s.at) AS at,
    CASE WHEN c.last_consumed_created_at IS NULL THEN '{nothing}' ELSE c.last_consumed_id END AS id
) AS w
WHERE w.at IS NOT NULL

-- name: letters
SELECT d.id::text AS letter_id, d.partition_id::text AS partition_id, coalesce(d.consumer_group, '{queue_mode}') AS consumer_group,
  coalesce(d.error_message, '') AS error, coalesce(d.retry_count, 0) AS attempts, d.failed_at, {message}
FROM queen.dead_letter_queue AS d JOIN queen.messages AS m ON m.id = d.message_id
WHERE d.failed_at < '{horizon}' ORDER BY d.partition_id, d.failed_at, d.id
