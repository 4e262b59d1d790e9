-- What an import from Queen may read and write of queues. Rows are given as JSON; chunks and dead letters as temporary tables.

-- part: given_queues
jsonb_to_recordset($1::text::jsonb) AS g (queue_id uuid, name text, namespace text, task text, created_at timestamptz, options jsonb)

-- part: given_partitions
-- Partitions by their ids in Queen and the names of queue and partition.
jsonb_to_recordset($1::text::jsonb) AS g (partition_id uuid, queue text, name text, created_at timestamptz)

-- part: given_messages
jsonb_to_recordset($1::text::jsonb) AS g (partition_no bigint, id text)

-- part: given_groups
jsonb_to_recordset($1::text::jsonb) AS g (queue_no bigint, name text, mode text, from_at timestamptz, created_at timestamptz)

-- part: given_cursors
jsonb_to_recordset($1::text::jsonb) AS g (partition_no bigint, group_no bigint, position bigint, consumed boolean, attempts int)

-- name: queues_here
SELECT name FROM queues WHERE name = ANY (ARRAY(SELECT g.name FROM {given_queues}))

-- name: make_queues
-- Those that are there stay as they are. An id that is in use here belongs to another queue.
INSERT INTO queues (queue_id, name, namespace, task, created_at, options)
SELECT CASE WHEN EXISTS (SELECT FROM queues AS q WHERE q.queue_id = g.queue_id) THEN gen_random_uuid() ELSE g.queue_id END,
  name, namespace, task, created_at, options
FROM {given_queues} ON CONFLICT (name) DO NOTHING

-- name: hold_queues
-- Keeps queues from being deleted until the transaction ends.
SELECT count(pg_advisory_xact_lock_shared(k)::text) FROM (
  SELECT DISTINCT queue_lock(q.queue_no) AS k FROM {given_partitions} JOIN queues AS q ON q.name = g.queue ORDER BY k
) AS locks

-- name: make_partitions
INSERT INTO queue_partitions (partition_id, queue_no, name, created_at)
SELECT CASE WHEN EXISTS (SELECT FROM queue_partitions AS p WHERE p.partition_id = g.partition_id) THEN gen_random_uuid() ELSE g.partition_id END,
  q.queue_no, g.name, g.created_at
FROM {given_partitions} JOIN queues AS q ON q.name = g.queue ON CONFLICT (queue_no, name) DO NOTHING

-- name: partitions_here
-- Partitions that are here, and how far they were imported. Into one that was made since nothing was.
SELECT g.partition_id::text AS partition_id, q.queue_no, p.partition_no, coalesce((q.options || p.options) @> '{"encryptionEnabled": true}', false) AS encrypted,
  i.created_at, i.message_id::text AS message_id,
  CASE WHEN i.partition_no = p.partition_no THEN i.end_position ELSE 0 END AS end_position, i.failed_at, i.letter_id::text AS letter_id
FROM {given_partitions}
LEFT JOIN queues AS q ON q.name = g.queue
LEFT JOIN queue_partitions AS p ON p.queue_no = q.queue_no AND p.name = g.name
LEFT JOIN queen_partitions AS i ON i.partition_id = g.partition_id

-- name: lock_partitions
-- As a push does: the queues shared, the partitions alone, in one order for all.
SELECT count(pg_advisory_xact_lock_shared(k)::text) FROM (
  SELECT DISTINCT queue_lock(p.queue_no) AS k FROM queue_partitions AS p
  WHERE p.partition_no IN (SELECT value::bigint FROM jsonb_array_elements_text($1::text::jsonb)) ORDER BY k
) AS queues
UNION ALL
SELECT count(pg_advisory_xact_lock(k)::text) FROM (
  SELECT DISTINCT queue_partition_lock(value::bigint) AS k FROM jsonb_array_elements_text($1::text::jsonb) ORDER BY k
) AS partitions

-- name: ends
-- The ends of partitions, for what is stored behind them.
SELECT p.partition_no, greatest(c.end_position, p.floor) AS end_position, greatest(c.created_at, p.floor_at) AS created_at,
  greatest(c.stored_at, p.floor_at) AS stored_at, clock_timestamp() AS now
FROM queue_partitions AS p
LEFT JOIN LATERAL (
  SELECT c.end_position, c.created_at, c.stored_at FROM queue_chunks AS c WHERE c.partition_no = p.partition_no ORDER BY c.end_position DESC LIMIT 1
) AS c ON true
WHERE p.partition_no IN (SELECT value::bigint FROM jsonb_array_elements_text($1::text::jsonb))

-- name: known
-- Those of some messages that are here by their transaction ids: where, and by which ids.
SELECT g.partition_no, g.id, h.position, queue_message_id(c.first_id, h.position - c.end_position + c.count)::text AS message_id
FROM {given_messages} JOIN queue_partitions AS p ON p.partition_no = g.partition_no
CROSS JOIN LATERAL (
  SELECT i.position FROM queue_ids AS i
  WHERE i.partition_no = g.partition_no AND i.hash = hashtextextended(g.id, g.partition_no) AND i.position >= p.floor
  ORDER BY i.position OFFSET 0  -- one look-up for each message, however many the partition has
) AS h
CROSS JOIN LATERAL (
  SELECT * FROM queue_chunks AS c WHERE c.partition_no = g.partition_no AND c.end_position > h.position ORDER BY c.end_position LIMIT 1
) AS c
WHERE c.transaction_ids[h.position - c.end_position + c.count + 1] = g.id

-- name: store_chunks
-- Chunks are stored in the days of now: their own may be gone, and retention looks at created_at.
WITH given AS MATERIALIZED (
  SELECT partition_no, end_position, count, stored_at, created_at, first_id::uuid AS first_id, key_id::uuid AS key_id, producer, body,
    ARRAY(SELECT e.value FROM jsonb_array_elements_text(transaction_ids::jsonb) WITH ORDINALITY AS e (value, n) ORDER BY e.n) AS transaction_ids,
    ARRAY(SELECT e.value FROM jsonb_array_elements_text(trace_ids::jsonb) WITH ORDINALITY AS e (value, n) ORDER BY e.n) AS trace_ids,
    ARRAY(SELECT e.value::int FROM jsonb_array_elements_text(ends::jsonb) WITH ORDINALITY AS e (value, n) ORDER BY e.n) AS ends
  FROM imported_chunks
), stored AS (
  INSERT INTO queue_chunks (
    partition_no, end_position, count, stored_at, created_at, first_id, key_id, producer, transaction_ids, trace_ids, ends, body
  )
  SELECT partition_no, end_position, count, stored_at, created_at, first_id, key_id, producer, transaction_ids,
    CASE WHEN num_nonnulls(VARIADIC trace_ids) > 0 THEN trace_ids END, ends, body
  FROM given
)
INSERT INTO queue_ids (partition_no, hash, position)
SELECT g.partition_no, hashtextextended(m.id, g.partition_no), g.end_position - g.count + m.n - 1
FROM given AS g CROSS JOIN LATERAL unnest(g.transaction_ids) WITH ORDINALITY AS m (id, n)

-- name: reached
-- How far partitions were imported.
INSERT INTO queen_partitions AS i (partition_id, partition_no, created_at, message_id, end_position)
SELECT partition_id, partition_no, created_at, message_id, end_position
FROM jsonb_to_recordset($1::text::jsonb) AS g (partition_id uuid, partition_no bigint, created_at timestamptz, message_id uuid, end_position bigint)
ON CONFLICT (partition_id) DO UPDATE SET partition_no = excluded.partition_no, created_at = excluded.created_at,
  message_id = excluded.message_id, end_position = excluded.end_position

-- name: make_groups
INSERT INTO queue_groups (queue_no, name, mode, from_at, created_at)
SELECT q.queue_no, g.name, g.mode, g.from_at, g.created_at FROM {given_groups} JOIN queues AS q ON q.queue_no = g.queue_no
ON CONFLICT (queue_no, name) DO NOTHING

-- name: groups_here
SELECT w.queue_no, w.name, w.group_no FROM {given_groups} JOIN queue_groups AS w ON w.queue_no = g.queue_no AND w.name = g.name

-- name: lock_cursors
SELECT count(pg_advisory_xact_lock(k)::text) FROM (
  SELECT DISTINCT queue_cursor_lock(g.partition_no, g.group_no) AS k FROM {given_cursors} ORDER BY k
) AS locks

-- part: cursors_to_move
-- Cursors that are to move forward: none moves back.
{given_cursors} JOIN queue_partitions AS p ON p.partition_no = g.partition_no
LEFT JOIN LATERAL (
  SELECT * FROM queue_cursors AS k WHERE k.partition_no = g.partition_no AND k.group_no = g.group_no ORDER BY k.version DESC LIMIT 1
) AS k ON true
WHERE greatest(k.position, p.floor) < g.position

-- name: cursors_behind
SELECT count(*) AS row_count FROM {cursors_to_move}

-- name: move_cursors
WITH old AS MATERIALIZED (
  SELECT g.partition_no, g.group_no, g.position, coalesce(k.version, 0) AS version, coalesce(k.settled, '{}') AS settled,
    CASE WHEN g.consumed THEN int8multirange(int8range(greatest(k.position, p.floor), g.position)) ELSE '{}' END - coalesce(k.settled, '{}') AS newly,
    coalesce(k.passed, '{}') AS passed, coalesce(g.attempts, 0) AS attempts, k.lease_id, k.lease_end, k.lease_until, k.leased_by, k.ended_lease,
    k.read_at, coalesce(k.consumed, 0) AS consumed, k.consumed_at
  FROM {cursors_to_move}
), moved AS (
  INSERT INTO queue_cursors (
    partition_no, group_no, version, position, settled, passed, attempts, lease_id, lease_end, lease_until, leased_by, ended_lease, read_at,
    consumed, consumed_at, changed_at
  )
  SELECT partition_no, group_no, version + 1, position, settled + newly, passed, attempts, lease_id, lease_end, lease_until, leased_by, ended_lease,
    read_at, consumed + queue_count(newly), CASE WHEN isempty(newly) THEN consumed_at ELSE $2 END, $2
  FROM old RETURNING 1
), gone AS (
  DELETE FROM queue_cursors AS k USING old WHERE k.partition_no = old.partition_no AND k.group_no = old.group_no AND k.version = old.version
)
SELECT count(*) AS row_count FROM moved

-- name: store_letters
WITH stored AS (
  INSERT INTO queue_dead_letters (
    queue_no, partition_no, group_no, position, message_id, transaction_id, trace_id, producer, key_id, body, error, attempts, created_at, failed_at
  )
  SELECT queue_no, partition_no, group_no, position, message_id::uuid, transaction_id, trace_id, producer, key_id::uuid, body, error, attempts,
    created_at, failed_at
  FROM imported_letters ORDER BY failed_at, letter_id
)
UPDATE queen_partitions AS i SET failed_at = l.failed_at, letter_id = l.letter_id::uuid
FROM (SELECT DISTINCT ON (queen_partition) * FROM imported_letters ORDER BY queen_partition, failed_at DESC, letter_id DESC) AS l
WHERE i.partition_id = l.queen_partition::uuid
