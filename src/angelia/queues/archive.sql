-- part: place
-- Where a message is. An encrypted payload is bound to these names and to the id of its message.
q.queue_id::text AS queue_id, q.name AS queue, p.partition_id::text AS partition_id, p.name AS partition

-- part: message
-- What the archive keeps of the message with the number m.number in the chunk `c`. Its payload is as it is stored.
{place}, m.position, queue_message_id(c.first_id, m.number)::text AS message_id, c.transaction_ids[m.number + 1] AS transaction_id,
  c.trace_ids[m.number + 1] AS trace_id, c.producer, c.key_id::text AS key_id,
  substr(c.body, coalesce(c.ends[m.number], 0) + 1, c.ends[m.number + 1] - coalesce(c.ends[m.number], 0)) AS payload, c.created_at,
  (p.partition_no % 256)::smallint AS bucket, (c.created_at AT TIME ZONE 'UTC')::date AS day

-- part: letter
-- What the archive keeps of the dead letter `d`.
d.letter_no::text AS letter_id, {place}, g.name AS consumer_group, d.position, d.message_id::text AS message_id, d.transaction_id, d.trace_id,
  d.producer, d.key_id::text AS key_id, d.body AS payload, d.error, d.attempts, d.created_at, d.failed_at,
  (d.partition_no % 256)::smallint AS bucket, (d.failed_at AT TIME ZONE 'UTC')::date AS day

-- part: agent
-- What producers are called: an agent by its handle, and by its id before it claimed one.
(SELECT $1 UNION SELECT id::text FROM agents WHERE handle = $1)

-- part: first
-- Messages before it have left the partition.
coalesce(p.purge_floor, p.floor)

-- part: ended
-- How a message ended that retention has hidden. What a consumer group had consumed by then was noted.
CASE
  WHEN p.evicted @> m.position THEN 'evicted'
  WHEN EXISTS (SELECT FROM queue_dead_letters AS d WHERE d.partition_no = p.partition_no AND d.position = m.position) THEN 'dead'
  WHEN m.position < (
    SELECT h.consumed FROM queue_hidden AS h WHERE h.partition_no = p.partition_no AND h.position > m.position ORDER BY h.position LIMIT 1
  ) THEN 'completed'
  ELSE 'expired'
END

-- part: hidden
-- Partitions with messages that wait for the archive: from the floor of the disk up to w.position.
(SELECT * FROM queue_partitions WHERE purge_floor IS NOT NULL) AS p
CROSS JOIN LATERAL (SELECT max(h.position) AS position FROM queue_hidden AS h WHERE h.partition_no = p.partition_no) AS w

-- part: letters
queue_dead_letters AS d
JOIN queue_partitions AS p ON p.partition_no = d.partition_no
JOIN queues AS q ON q.queue_no = p.queue_no
LEFT JOIN queue_groups AS g ON g.group_no = d.group_no

-- part: due_letters
-- Dead letters of archived queues whose retention is over at the time $1.
{letters} CROSS JOIN LATERAL (SELECT q.options || p.options AS options) AS o
WHERE o.options @> '{"retentionEnabled": true, "archiveEnabled": true}' AND (o.options ->> 'completedRetentionSeconds')::bigint > 0
  AND d.failed_at <= $1::timestamptz - (o.options ->> 'completedRetentionSeconds')::bigint * interval '1 second'

-- name: queue_messages_hidden
-- Messages that retention has hidden, and that wait for the archive. Those that were deleted are not archived. No chunk has so many messages
-- that the bound of end_position leaves one out; it spares the chunks of all messages that are not hidden.
SELECT {message}, {ended} AS ended
FROM {hidden} JOIN queues AS q ON q.queue_no = p.queue_no
JOIN queue_chunks AS c ON c.partition_no = p.partition_no AND c.end_position > p.purge_floor AND c.end_position < w.position + 100000
  AND c.end_position - c.count < w.position
CROSS JOIN LATERAL (
  SELECT n AS position, (n - c.end_position + c.count)::int AS number
  FROM generate_series(greatest(c.end_position - c.count, p.purge_floor), least(c.end_position, w.position) - 1) AS n
) AS m
WHERE p.purge_floor < w.position AND NOT p.removed @> m.position

-- name: queue_messages_about_agent
-- The messages that an agent pushed and that are there, hidden ones included. All chunks are looked at.
SELECT {message}, CASE WHEN m.position < p.floor THEN {ended} END AS ended
FROM queue_chunks AS c JOIN queue_partitions AS p ON p.partition_no = c.partition_no AND c.end_position > {first}
JOIN queues AS q ON q.queue_no = p.queue_no
CROSS JOIN LATERAL (
  SELECT n AS position, (n - c.end_position + c.count)::int AS number
  FROM generate_series(greatest(c.end_position - c.count, {first}), c.end_position - 1) AS n
) AS m
WHERE c.producer IN {agent} AND NOT p.removed @> m.position

-- name: queue_dead_letters_due
SELECT {letter} FROM {due_letters}

-- name: queue_dead_letters_about_agent
-- The dead letters of messages that an agent pushed.
SELECT {letter} FROM {letters} WHERE d.producer IN {agent}

-- part: own_traces
-- Traces of messages that an agent pushed, and those that it wrote itself.
t.worker IN {agent} OR EXISTS (
  SELECT FROM queue_chunks AS c
  WHERE c.partition_no = t.partition_no AND c.end_position > t.position AND c.end_position - c.count <= t.position AND c.producer IN {agent}
)

-- name: queue_traces_about_agent
-- What is encrypted of them is left out.
SELECT t.trace_id::text AS trace_id, q.name AS queue, t.transaction_id, t.group_name AS consumer_group, t.worker, t.event_type,
  array_to_string(t.names, ', ') AS names, CASE WHEN t.key_id IS NULL THEN convert_from(t.data, 'UTF8') END AS data, t.created_at
FROM queue_traces AS t LEFT JOIN queues AS q ON q.queue_no = t.queue_no WHERE {own_traces} ORDER BY t.trace_no

-- name: queue_buffered_about_agent
-- Messages that wait for the end of maintenance. What is encrypted of them is left out.
SELECT queue_name AS queue, partition_name AS partition, transaction_id, b.trace_id, producer, buffered_at,
  CASE WHEN key_id IS NULL THEN convert_from(body, 'UTF8') END AS payload
FROM queue_buffered AS b WHERE producer IN {agent} ORDER BY message_no

-- name: queue_notes_count
-- How many traces and buffered messages an erasure would remove.
SELECT (SELECT count(*) FROM queue_traces AS t WHERE {own_traces}) AS traces,
  (SELECT count(*) FROM queue_buffered WHERE producer IN {agent}) AS buffered

-- name: queues_lock_days
-- Until the transaction ends, no chunk is copied to a later day.
SELECT pg_advisory_xact_lock(hashtextextended('angelia/days of queue_chunks', 0))

-- name: queues_erase
-- What an agent pushed, its dead letters and its traces. Chunks keep their places, and their messages count as deleted: a position that
-- is gone would stop the cursors. Payloads become null, and transaction ids empty. All chunks are looked at.
WITH chunks AS MATERIALIZED (
  SELECT c.partition_no, c.end_position, c.count, c.transaction_ids FROM queue_chunks AS c WHERE c.producer IN {agent}
), messages AS MATERIALIZED (
  SELECT partition_no, range_agg(int8range(end_position - count, end_position)) AS positions FROM chunks GROUP BY partition_no
), held AS MATERIALIZED (
  SELECT p.partition_no, p.removed, int8multirange(int8range({first}, NULL)) AS present
  FROM queue_partitions AS p WHERE p.partition_no IN (SELECT partition_no FROM messages) ORDER BY p.partition_no FOR NO KEY UPDATE
), marked AS (
  UPDATE queue_partitions AS p SET removed = p.removed + m.positions * h.present
  FROM held AS h JOIN messages AS m ON m.partition_no = h.partition_no WHERE p.partition_no = h.partition_no
), emptied AS (
  UPDATE queue_chunks AS c SET producer = NULL, key_id = NULL, trace_ids = NULL, transaction_ids = array_fill(''::text, ARRAY[c.count]),
    ends = ARRAY(SELECT 4 * n FROM generate_series(1, c.count) AS n), body = convert_to(repeat('null', c.count), 'UTF8')
  WHERE c.producer IN {agent}
), ids AS (
  DELETE FROM queue_ids AS i USING (
    SELECT c.partition_no, hashtextextended(m.id, c.partition_no) AS hash, c.end_position - c.count + m.n - 1 AS position
    FROM chunks AS c CROSS JOIN LATERAL unnest(c.transaction_ids) WITH ORDINALITY AS m (id, n)
  ) AS m
  WHERE i.partition_no = m.partition_no AND i.hash = m.hash AND i.position = m.position
), letters AS (
  DELETE FROM queue_dead_letters WHERE producer IN {agent} RETURNING 1
), traces AS (
  DELETE FROM queue_traces AS t WHERE {own_traces} RETURNING 1
), buffered AS (
  DELETE FROM queue_buffered WHERE producer IN {agent} RETURNING 1
)
SELECT coalesce((
    SELECT sum(queue_count(m.positions * h.present - h.removed)) FROM held AS h JOIN messages AS m ON m.partition_no = h.partition_no
  ), 0)::bigint AS messages, (SELECT count(*) FROM letters) AS letters, (SELECT count(*) FROM traces) AS traces,
  (SELECT count(*) FROM buffered) AS buffered

-- name: queue_messages_waiting
-- How many wait for the archive, and since when the first of them does.
SELECT coalesce(sum(w.position - p.purge_floor - queue_count(p.removed * int8multirange(int8range(p.purge_floor, w.position)))), 0)::bigint AS row_count,
  (SELECT min(hidden_at) FROM queue_hidden) AS since
FROM {hidden} WHERE p.purge_floor < w.position

-- name: queue_dead_letters_waiting
SELECT count(*) AS row_count, min(d.failed_at + (o.options ->> 'completedRetentionSeconds')::bigint * interval '1 second') AS since
FROM {due_letters}

-- name: queue_dead_letters_waiting_count
-- However many there are, no more than $2 are read.
SELECT count(*) FROM (SELECT 1 FROM {due_letters} LIMIT $2) AS counted

-- part: raised
-- Raises the floors of the partitions in `held`: what is before them may leave the disk. Without one, all that is hidden may.
noted AS (
  DELETE FROM queue_hidden AS h USING held WHERE h.partition_no = held.partition_no AND h.position <= held.position
)
UPDATE queue_partitions AS p SET purge_floor = (
  SELECT held.position FROM queue_hidden AS h WHERE h.partition_no = held.partition_no AND h.position > held.position LIMIT 1
)
FROM held WHERE p.partition_no = held.partition_no

-- name: queues_pass_deleted
-- Deleted messages are not archived, so the archive does not wait at one.
WITH held AS MATERIALIZED (
  SELECT p.partition_no, queue_position_after(p.purge_floor, p.removed) AS position
  FROM queue_partitions AS p WHERE p.purge_floor IS NOT NULL AND p.removed @> p.purge_floor ORDER BY p.partition_no FOR NO KEY UPDATE
), {raised}

-- name: queue_messages_given
-- Count and sum over the ids of archived messages, to be compared with what was read back from the archive.
SELECT count(*) AS row_count, coalesce(sum(('x' || left(md5(message_id), 15))::bit(60)::bigint), 0)::text AS id_hash_sum
FROM archived_ids

-- name: queue_dead_letters_given
SELECT count(*) AS row_count, coalesce(sum(('x' || left(md5(letter_id), 15))::bit(60)::bigint), 0)::text AS id_hash_sum
FROM archived_ids

-- name: queues_numbered_before
DROP TABLE IF EXISTS pg_temp.numbered_ids

-- name: queue_messages_numbered
-- How far each partition is archived, numbered in the order in which all lock them.
CREATE TEMPORARY TABLE numbered_ids AS
SELECT row_number() OVER (ORDER BY p.partition_no) AS n, p.partition_no, a.position
FROM (SELECT partition_id::uuid AS partition_id, max(position) + 1 AS position FROM archived_ids GROUP BY 1) AS a
JOIN queue_partitions AS p ON p.partition_id = a.partition_id

-- name: queue_dead_letters_numbered
CREATE TEMPORARY TABLE numbered_ids AS
SELECT row_number() OVER (ORDER BY letter_id::bigint) AS n, letter_id::bigint AS letter_no FROM archived_ids

-- name: queues_numbered_key
ALTER TABLE numbered_ids ADD PRIMARY KEY (n)

-- name: queues_numbered_count
SELECT count(*) AS row_count FROM numbered_ids

-- name: queues_by_key
-- The planner knows nothing of the temporary table: rows are looked up one by one, however large the others are.
SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)

-- name: queue_messages_purge
-- Lets archived messages leave the disk: retention drops their chunks with their day. A partition whose queue is no longer archived has no
-- such floor, and one whose messages waited too long may have one that is further on.
WITH held AS MATERIALIZED (
  SELECT p.partition_no, queue_position_after(greatest(p.purge_floor, a.position), p.removed) AS position
  FROM numbered_ids AS a JOIN queue_partitions AS p ON p.partition_no = a.partition_no
  WHERE a.n > $1 AND a.n <= $2 AND p.purge_floor IS NOT NULL ORDER BY p.partition_no FOR NO KEY UPDATE OF p
), {raised}

-- name: queue_dead_letters_purge
-- Exactly these; one that is gone was put back or removed meanwhile.
WITH gone AS (
  DELETE FROM queue_dead_letters AS d USING numbered_ids AS a
  WHERE a.n > $1 AND a.n <= $2 AND d.letter_no = a.letter_no RETURNING d.partition_no
)
INSERT INTO queue_retention_history (at, queue_name, partition_no, partition_name, kind, count)
SELECT $3, q.name, p.partition_no, p.name, 'failed', g.count
FROM (SELECT partition_no, count(*) AS count FROM gone GROUP BY partition_no) AS g
JOIN queue_partitions AS p ON p.partition_no = g.partition_no JOIN queues AS q ON q.queue_no = p.queue_no

-- name: queue_activity
-- What happened in queues by minute or hour: what was counted, what was evicted, and of what is still there, how much is encrypted. A
-- queue that was deleted has no name. Chunks were never stored before their messages were pushed.
SELECT m.queue_no, q.name AS queue, m.pushed, m.pushed_bytes, m.popped, m.completed, m.failed, m.dead, m.evicted, m.waited, m.waited_most_ms,
  m.evicted_waited, m.oldest_ms, m.stored, m.encrypted, extract(hour FROM m.at AT TIME ZONE 'UTC')::smallint AS hour,
  (m.queue_no % 256)::smallint AS bucket, (m.at AT TIME ZONE 'UTC')::date AS day
FROM (
  SELECT minute AS at, queue_no, pushed, pushed_bytes, popped, completed, failed, dead, 0::bigint AS evicted, waited, waited_most_ms,
    '{}'::bigint[] AS evicted_waited, 0::bigint AS oldest_ms, 0::bigint AS stored, 0::bigint AS encrypted
  FROM queue_minutes WHERE minute >= $1 AND minute < $2
  UNION ALL
  SELECT hour, queue_no, 0, 0, 0, 0, 0, 0, count, '{}', 0, waited, (oldest_seconds * 1000)::bigint, 0, 0
  FROM queue_evictions WHERE hour >= $1 AND hour < $2
  UNION ALL
  SELECT date_bin('1 hour', c.created_at, 'epoch'), p.queue_no, 0, 0, 0, 0, 0, 0, 0, '{}', 0, '{}', 0, sum(c.count)::bigint,
    coalesce(sum(c.count) FILTER (WHERE c.key_id IS NOT NULL), 0)::bigint
  FROM queue_chunks AS c JOIN queue_partitions AS p ON p.partition_no = c.partition_no
  WHERE c.stored_at >= $1 AND c.created_at >= $1 AND c.created_at < $2 GROUP BY 1, 2
) AS m LEFT JOIN queues AS q ON q.queue_no = m.queue_no

-- name: queue_events_by_day
-- How much was counted of every day before the time $1.
SELECT (at AT TIME ZONE 'UTC')::date AS day, sum(events)::bigint AS events
FROM (
  SELECT minute AS at, pushed + popped + completed + failed + dead AS events FROM queue_minutes WHERE minute < $1
  UNION ALL
  SELECT hour, count FROM queue_evictions WHERE hour < $1
  UNION ALL
  SELECT at, count FROM queue_retention_history WHERE at < $1
) AS e GROUP BY 1 HAVING sum(events) > 0 ORDER BY 1

-- name: queue_removals_by_day
-- What retention removed on the days from the time $1 up to $2.
SELECT (at AT TIME ZONE 'UTC')::date AS day, coalesce(sum(count) FILTER (WHERE kind = 'retention'), 0)::bigint AS removed_expired,
  coalesce(sum(count) FILTER (WHERE kind = 'completed'), 0)::bigint AS removed_completed,
  coalesce(sum(count) FILTER (WHERE kind = 'failed'), 0)::bigint AS removed_dead_letters,
  coalesce(sum(count) FILTER (WHERE kind = 'partition'), 0)::bigint AS removed_partitions
FROM queue_retention_history WHERE at >= $1 AND at < $2 GROUP BY 1 ORDER BY 1

-- name: queue_encryption
-- How many queues there are, and how many encrypt new messages.
SELECT count(*) AS all_queues, count(*) FILTER (WHERE options @> '{"encryptionEnabled": true}') AS encrypted_queues FROM queues
