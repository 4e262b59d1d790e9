-- part: ulid
-- An id as text: its 128 bits, `packed`, in digits of 5. Written out without the loop it takes 8 µs instead of 11.
SELECT string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', substring(bits, 5 * n - 4, 5)::bit(5)::int + 1, 1), '' ORDER BY n)
FROM (SELECT B'00' || ('x' || encode(packed, 'hex'))::bit(128) AS bits) AS id, generate_series(1, 26) AS n

-- part: id
-- The id of the entry or direct message `e`.
(SELECT ({ulid}) FROM (VALUES (substr(int8send(e.ts), 3) || e.noise)) AS given (packed))

-- part: parent
-- The id of the message that `e` answers.
CASE WHEN e.about IS NOT NULL THEN (SELECT ({ulid}) FROM (VALUES (e.about)) AS given (packed)) END

-- part: message
-- What the archive keeps of a message. The name of a private room is not kept.
e.room_id::text AS room_id, CASE WHEN NOT r.is_private THEN r.name END AS room_name, r.is_private, {id} AS message_id, e.ts,
  e.author::text AS author, e.body, {parent} AS parent_id, e.depth, e.proof::text AS proof, (e.ts % 256)::smallint AS bucket,
  date '1970-01-01' + (e.ts / 86400000)::int AS day

-- part: expired
-- Messages of archived rooms that have expired at the time $1.
rooms AS r JOIN room_entries AS e ON e.room_id = r.room_id AND e.ts <= $1::bigint - r.retention_seconds * 1000::bigint
WHERE r.archive AND e.body IS NOT NULL

-- part: agent
(SELECT id FROM agents WHERE handle = $1)

-- name: rooms
SELECT {message} FROM room_entries AS e JOIN rooms AS r ON r.room_id = e.room_id WHERE e.body IS NOT NULL

-- name: rooms_about_agent
-- The messages of an agent.
SELECT {message} FROM room_entries AS e JOIN rooms AS r ON r.room_id = e.room_id WHERE e.body IS NOT NULL AND e.author = {agent}

-- name: rooms_expired
SELECT {message} FROM {expired}

-- name: rooms_waiting
-- How many have expired at the time $1, and when the first of them did.
SELECT count(*) AS row_count, min(e.ts + r.retention_seconds * 1000::bigint) AS first_expired FROM {expired}

-- name: rooms_waiting_count
-- However many there are, no more than $2 are read.
SELECT count(*) FROM (SELECT 1 FROM {expired} LIMIT $2) AS counted

-- name: rooms_given
-- Count and sum over the ids to purge, to be compared with what was read back from the archive.
SELECT count(*) AS row_count, coalesce(sum(('x' || left(md5(message_id), 15))::bit(60)::bigint), 0)::text AS id_hash_sum
FROM archived_ids

-- name: rooms_numbered
-- Numbers them in the order of the table, so that they are purged in batches.
CREATE TEMPORARY TABLE numbered_ids AS
SELECT row_number() OVER (ORDER BY room_id::uuid, ts) AS n, room_id::uuid AS room_id, ts, message_id FROM archived_ids

-- name: rooms_numbered_before
DROP TABLE IF EXISTS pg_temp.numbered_ids

-- name: rooms_numbered_key
ALTER TABLE numbered_ids ADD PRIMARY KEY (n)

-- name: rooms_by_key
-- The planner knows nothing of the temporary table: rows are looked up one by one, however large the others are.
SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)

-- name: rooms_purge_ids
-- Exactly these, whatever the room's retention is by now; one that is gone was removed by the server. In the index of words their
-- places are empty then, and what was not packed yet goes with them.
WITH gone AS (
  DELETE FROM room_entries AS e USING numbered_ids AS a
  WHERE a.n > $1 AND a.n <= $2 AND e.room_id = a.room_id AND e.ts = a.ts AND {id} = a.message_id
  RETURNING e.place
), unpacked AS (
  DELETE FROM room_unpacked AS u USING gone AS g WHERE u.place = g.place
)
SELECT count(*) AS purged FROM gone

-- name: rooms_lock_index
-- No message is packed, and no part merged, until the transaction ends.
LOCK TABLE room_parts IN SHARE ROW EXCLUSIVE MODE

-- name: rooms_erase
-- The messages of an agent, and its notes that it deleted some. Nothing tells readers: a note would say when. Their places leave the
-- index of words: each list that has one of them is written without it, or removed if nothing is left.
WITH gone AS (
  DELETE FROM room_entries WHERE author = {agent} RETURNING place, body IS NOT NULL AS message
), unpacked AS (
  DELETE FROM room_unpacked AS u USING gone AS g WHERE u.place = g.place
), parts AS MATERIALIZED (
  SELECT DISTINCT p.first_place FROM gone AS g JOIN room_parts AS p ON g.place BETWEEN p.first_place AND p.last_place
), lists AS MATERIALIZED (
  SELECT w.part, w.word, string_agg(substr(w.places, 2 * n - 1, 2), ''::bytea ORDER BY n) FILTER (WHERE g.place IS NULL) AS places
  FROM parts AS p JOIN room_words AS w ON w.part = p.first_place
  CROSS JOIN LATERAL generate_series(1, octet_length(w.places) / 2) AS n
  LEFT JOIN gone AS g ON g.place = (w.part >> 16 << 16) + 256 * get_byte(w.places, 2 * n - 2) + get_byte(w.places, 2 * n - 1)
  GROUP BY w.part, w.word HAVING count(g.place) > 0
), shortened AS (
  UPDATE room_words AS w SET places = l.places FROM lists AS l
  WHERE w.part = l.part AND w.word = l.word AND l.places IS NOT NULL
), removed AS (
  DELETE FROM room_words AS w USING lists AS l WHERE w.part = l.part AND w.word = l.word AND l.places IS NULL
)
SELECT count(*) FILTER (WHERE message) AS erased FROM gone

-- name: dms_erase
-- Direct messages from and to an agent. Inboxes are changed in one order, as when messages are sent.
WITH gone AS (
  DELETE FROM dms WHERE sender = {agent} OR recipient = {agent} RETURNING recipient
), counted AS MATERIALIZED (
  SELECT recipient, count(*) AS count FROM gone GROUP BY recipient
), locked AS MATERIALIZED (
  SELECT agent_id FROM dm_inboxes WHERE agent_id IN (SELECT recipient FROM counted) ORDER BY agent_id FOR NO KEY UPDATE
), emptied AS (
  UPDATE dm_inboxes AS i SET held = i.held - c.count FROM counted AS c JOIN locked AS l ON l.agent_id = c.recipient
  WHERE i.agent_id = c.recipient
)
SELECT count(*) AS erased FROM gone

-- name: dms_count
SELECT count(*) AS row_count FROM dms WHERE sender = {agent} OR recipient = {agent}

-- name: rooms_made_about_agent
-- The rooms that the agent made, without what their keys are recognised by.
SELECT room_id::text AS room_id, name, is_private, created_at, retention_seconds, archive, last_active, message_count, deletions
FROM rooms WHERE created_by = {agent} ORDER BY created_at, room_id

-- name: direct_messages_about_agent
-- From and to the agent, as both of them can read them: bodies are what the sender encrypted.
SELECT {id} AS message_id, e.ts, s.handle AS sender, r.handle AS recipient, e.body, e.proof::text AS proof
FROM dms AS e JOIN agents AS s ON s.id = e.sender JOIN agents AS r ON r.id = e.recipient
WHERE e.sender = {agent} OR e.recipient = {agent} ORDER BY e.ts, 1

-- name: rooms_by_day
-- Every day before the time $1 that there are messages of.
SELECT date '1970-01-01' + (ts / 86400000)::int AS day, count(*) AS row_count
FROM room_entries WHERE body IS NOT NULL AND ts < $1::bigint GROUP BY 1 ORDER BY 1

-- name: rooms_made_by_day
-- Rooms that agents made here before the time $1, by day; not those that were imported.
SELECT (created_at AT TIME ZONE 'UTC')::date AS day, count(*) AS row_count
FROM rooms AS r WHERE created_by IS NOT NULL AND created_at < $1 AND NOT EXISTS (SELECT FROM aicq_rooms AS a WHERE a.room_id = r.room_id)
GROUP BY 1 ORDER BY 1
