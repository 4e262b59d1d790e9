-- What an import from AICQ may read and write of rooms. Rows are given as JSON, bytes in hex.

-- part: rooms
jsonb_to_recordset($1::text::jsonb)
  AS g (room_id uuid, name text, key_hash text, created_by uuid, created_at timestamptz, last_active timestamptz, message_count bigint)

-- part: times
(SELECT value::bigint AS ts FROM jsonb_array_elements_text($2::text::jsonb)) AS w

-- name: rooms_here
SELECT room_id::text AS room_id FROM rooms WHERE room_id = ANY (ARRAY(SELECT g.room_id FROM {rooms}))

-- name: create_rooms
-- A salt of NULL says that the hash is of bcrypt.
INSERT INTO rooms (room_id, name, is_private, key_hash, created_by, created_at, last_active)
SELECT room_id, name, key_hash IS NOT NULL, convert_to(key_hash, 'UTF8'), created_by, created_at, date_trunc('second', last_active)
FROM {rooms}

-- name: lock_rooms
-- In the order in which a post of several rooms locks them.
SELECT room_id::text AS room_id FROM rooms WHERE room_id = ANY (ARRAY(SELECT g.room_id FROM {rooms})) ORDER BY rooms.room_id FOR NO KEY UPDATE

-- name: count_rooms
-- Adds what AICQ counted since the last import. Its count covers the messages of the room, so their import adds nothing to it.
WITH given AS MATERIALIZED (
  SELECT g.*, coalesce(a.message_count, 0) AS counted
  FROM {rooms} LEFT JOIN aicq_rooms AS a ON a.room_id = g.room_id AND a.created_at = g.created_at
), remembered AS (
  INSERT INTO aicq_rooms (room_id, created_at, message_count)
  SELECT room_id, created_at, message_count FROM given
  ON CONFLICT (room_id, created_at) DO UPDATE SET message_count = greatest(aicq_rooms.message_count, excluded.message_count)
)
UPDATE rooms AS r SET message_count = r.message_count + g.message_count - g.counted,
  last_active = greatest(r.last_active, date_trunc('second', g.last_active))
FROM given AS g WHERE r.room_id = g.room_id AND g.message_count > g.counted

-- name: room
SELECT is_private, retention_seconds FROM rooms WHERE room_id = $1::text::uuid

-- name: lock_room
-- As a post does: what is committed before has its time, and what is committed later has a later one.
SELECT FROM rooms WHERE room_id = $1::text::uuid FOR NO KEY UPDATE

-- name: known
-- Those of some messages that were imported before: their times here, and how many messages they answer if they are still there.
-- The LIMIT of each enforces one look-up by key for each message; as joins, the planner would scan a large room.
SELECT w.id, a.ts, e.depth FROM jsonb_array_elements_text($2::text::jsonb) AS w (id)
CROSS JOIN LATERAL (
  SELECT ts FROM aicq_messages WHERE conversation = $1::text::uuid AND id = decode(w.id, 'hex') LIMIT 1
) AS a
LEFT JOIN LATERAL (
  SELECT depth FROM room_entries
  WHERE room_id = $1::text::uuid AND ts = a.ts AND noise = substr(decode(w.id, 'hex'), 7) AND body IS NOT NULL LIMIT 1
) AS e ON true

-- name: room_times
-- Those of some times at which a room has an entry, and the first time after each at which it has none.
SELECT w.ts, (
    SELECT n.ts + 1 FROM room_entries AS n WHERE n.room_id = $1::text::uuid AND n.ts >= w.ts
      AND (SELECT true FROM room_entries AS x WHERE x.room_id = n.room_id AND x.ts = n.ts + 1 LIMIT 1) IS NULL
    ORDER BY n.ts LIMIT 1
  ) AS free
FROM {times} CROSS JOIN LATERAL (SELECT FROM room_entries WHERE room_id = $1::text::uuid AND ts = w.ts LIMIT 1) AS taken

-- name: store_messages
-- Stores messages of a room at times that are free, with their words. They may be older than what the room has: pages show
-- them, and streams that are past their times do not.
WITH given AS MATERIALIZED (
  SELECT r.room_id, decode(w.id, 'hex') AS id, ts, author, body, decode(about, 'hex') AS about, depth, words,
    CASE WHEN cardinality(words) > 0 THEN next_room_place(r.retention_seconds, true) END AS place
  FROM (SELECT room_id, retention_seconds FROM rooms WHERE room_id = $1::text::uuid) AS r, jsonb_to_recordset($2::text::jsonb)
    AS w (id text, ts bigint, author uuid, body text, about text, depth int, words bigint[])
), remembered AS (
  INSERT INTO aicq_messages (conversation, id, ts) SELECT room_id, id, ts FROM given
), stored AS (
  INSERT INTO room_entries (room_id, ts, noise, author, body, about, depth, place)
  SELECT room_id, ts, substr(id, 7), author, body, about, depth, place FROM given
), indexed AS (
  INSERT INTO room_unpacked (place, ts, words) SELECT place, ts, words FROM given WHERE place IS NOT NULL
)
UPDATE rooms SET last_ts = greatest(last_ts, g.newest),
  last_active = greatest(last_active, date_trunc('second', to_timestamp(g.newest / 1000.0))),
  sweep_at = least(sweep_at, g.oldest + retention_seconds * 1000::bigint)
FROM (SELECT max(ts) AS newest, min(ts) AS oldest FROM given) AS g WHERE rooms.room_id = $1::text::uuid

-- name: make_inbox
INSERT INTO dm_inboxes (agent_id, last_ts, held) VALUES ($1::text::uuid, 0, 0) ON CONFLICT (agent_id) DO NOTHING

-- name: lock_inbox
SELECT held FROM dm_inboxes WHERE agent_id = $1::text::uuid FOR NO KEY UPDATE

-- name: inbox_times
-- As `room_times`, for direct messages.
SELECT w.ts, (
    SELECT n.ts + 1 FROM dms AS n WHERE n.recipient = $1::text::uuid AND n.ts >= w.ts
      AND (SELECT true FROM dms AS x WHERE x.recipient = n.recipient AND x.ts = n.ts + 1 LIMIT 1) IS NULL
    ORDER BY n.ts LIMIT 1
  ) AS free
FROM {times} CROSS JOIN LATERAL (SELECT FROM dms WHERE recipient = $1::text::uuid AND ts = w.ts LIMIT 1) AS taken

-- name: store_dms
WITH given AS MATERIALIZED (
  SELECT $1::text::uuid AS recipient, decode(id, 'hex') AS id, ts, author, body
  FROM jsonb_to_recordset($2::text::jsonb) AS w (id text, ts bigint, author uuid, body text)
), remembered AS (
  INSERT INTO aicq_messages (conversation, id, ts) SELECT recipient, id, ts FROM given
), stored AS (
  INSERT INTO dms (recipient, ts, noise, sender, body) SELECT recipient, ts, substr(id, 7), author, body FROM given
)
UPDATE dm_inboxes SET last_ts = greatest(last_ts, g.newest), held = held + g.count
FROM (SELECT max(ts) AS newest, count(*)::int AS count FROM given) AS g WHERE agent_id = $1::text::uuid
