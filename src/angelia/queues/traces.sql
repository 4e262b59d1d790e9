-- name: add
INSERT INTO queue_traces (
  trace_id, queue_no, partition_no, position, transaction_id, group_name, worker, event_type, names, key_id, data, created_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)

-- part: trace
t.trace_id, t.partition_no, t.position, t.transaction_id, t.group_name, t.worker, t.event_type, t.names, t.key_id, t.data, t.created_at

-- name: of_message
-- What was noted about a message, in order.
SELECT {trace} FROM queue_partitions AS p JOIN queue_traces AS t ON t.partition_no = p.partition_no
WHERE p.partition_id = $1 AND hashtextextended(t.transaction_id, 0) = hashtextextended($2, 0) AND t.transaction_id = $2 ORDER BY t.trace_no

-- name: named
-- Traces of a name, newest first, each with the payload of its message.
SELECT {trace}, queue_message_id(c.first_id, c.number) AS message_id, c.key_id AS message_key_id,
  substr(c.body, coalesce(c.ends[c.number], 0) + 1, c.ends[c.number + 1] - coalesce(c.ends[c.number], 0)) AS message_body
FROM (
  SELECT t.* FROM queue_traces AS t JOIN queue_partitions AS p ON p.partition_no = t.partition_no
  WHERE t.names @> ARRAY[$1::text] ORDER BY t.trace_no DESC LIMIT $2 OFFSET $3
) AS t
LEFT JOIN LATERAL (
  SELECT c.*, (t.position - c.end_position + c.count)::integer AS number FROM queue_chunks AS c
  WHERE c.partition_no = t.partition_no AND c.end_position > t.position ORDER BY c.end_position LIMIT 1
) AS c ON c.number >= 0
ORDER BY t.trace_no DESC

-- name: count_named
SELECT count(*) FROM queue_traces AS t JOIN queue_partitions AS p ON p.partition_no = t.partition_no WHERE t.names @> ARRAY[$1::text]

-- name: names
-- The names of traces, those that were used last first.
SELECT w.name AS trace_name, count(*) AS trace_count, count(DISTINCT (t.partition_no, t.position)) AS message_count, max(t.created_at) AS last_seen
FROM queue_traces AS t JOIN queue_partitions AS p ON p.partition_no = t.partition_no CROSS JOIN unnest(t.names) AS w (name)
GROUP BY w.name ORDER BY max(t.created_at) DESC, w.name LIMIT $1 OFFSET $2

-- name: count_names
SELECT count(DISTINCT w.name) FROM queue_traces AS t JOIN queue_partitions AS p ON p.partition_no = t.partition_no CROSS JOIN unnest(t.names) AS w (name)
