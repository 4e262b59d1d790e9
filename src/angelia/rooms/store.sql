-- part: room
room_id, name, is_private, key_salt, key_hash, created_by, created_at

-- part: details
{room}, retention_seconds, archive, last_active, message_count, deletions

-- part: entry
ts, noise, author, body, about, depth, proof

-- name: create
INSERT INTO rooms (room_id, name, is_private, key_salt, key_hash, created_by, created_at, last_active)
VALUES ($1, $2, $3, $4, $5, $6, $7, date_trunc('second', $7::timestamptz))
RETURNING {room}

-- name: room
SELECT {room} FROM rooms WHERE room_id = $1

-- name: public_rooms
SELECT room_id, name, message_count, last_active FROM rooms WHERE NOT is_private
ORDER BY last_active DESC, room_id LIMIT $1 OFFSET $2

-- name: count_public
SELECT count(*) FROM rooms WHERE NOT is_private

-- name: details
SELECT {details} FROM rooms WHERE room_id = $1

-- name: listed
-- Public rooms in order of creation; of one name, if a name is given.
SELECT {details} FROM rooms
WHERE NOT is_private AND ($1::varchar IS NULL OR name = $1) AND ($2::timestamptz IS NULL OR (created_at, room_id) > ($2, $3::uuid))
ORDER BY created_at, room_id LIMIT $4

-- name: change
-- With another retention, the oldest entry may be removed at another time: the next sweep finds out.
UPDATE rooms SET retention_seconds = coalesce($2, retention_seconds), archive = coalesce($3, archive),
  sweep_at = CASE WHEN sweep_at IS NOT NULL THEN 0 END
WHERE room_id = $1
RETURNING {details}

-- name: post
-- Stores messages, one UPDATE a room. Times rise strictly within a room: the room is locked until the commit, so what is
-- committed later has the later time, and readers that go on after a time miss nothing. $9 and $10 are the words of the messages,
-- each with the number of its message.
WITH given AS MATERIALIZED (
  SELECT *, row_number() OVER (PARTITION BY room_id ORDER BY n) AS position, count(*) OVER (PARTITION BY room_id) AS together,
    max(at_ms) OVER (PARTITION BY room_id) AS latest
  FROM unnest($1::uuid[], $2::bigint[], $3::bytea[], $4::uuid[], $5::text[], $6::bytea[], $7::int[], $8::jsonb[])
    WITH ORDINALITY AS w (room_id, at_ms, noise, author, body, about, depth, proof, n)
), found_by AS MATERIALIZED (
  SELECT n, array_agg(word) AS words FROM unnest($9::int[], $10::bigint[]) AS w (n, word) GROUP BY n
), locked AS MATERIALIZED (
  SELECT r.* FROM (SELECT DISTINCT room_id FROM given ORDER BY room_id) AS w
  CROSS JOIN LATERAL (
    SELECT room_id, last_ts, retention_seconds FROM rooms WHERE rooms.room_id = w.room_id LIMIT 1 FOR NO KEY UPDATE
  ) AS r
), begins AS MATERIALIZED (
  SELECT g.room_id, greatest(l.last_ts + 1, g.latest) AS first_ts, g.together, g.latest, l.retention_seconds
  FROM given AS g JOIN locked AS l ON l.room_id = g.room_id WHERE g.position = 1
), counted AS (
  UPDATE rooms AS r SET last_ts = b.first_ts + b.together - 1, message_count = r.message_count + b.together,
    last_active = date_trunc('second', to_timestamp(b.latest / 1000.0)),
    sweep_at = coalesce(r.sweep_at, b.first_ts + r.retention_seconds * 1000::bigint)
  FROM begins AS b WHERE r.room_id = b.room_id
), placed AS MATERIALIZED (
  SELECT g.*, b.first_ts + g.position - 1 AS ts, f.words,
    CASE WHEN f.words IS NOT NULL THEN next_room_place(b.retention_seconds) END AS place
  FROM given AS g JOIN begins AS b ON b.room_id = g.room_id LEFT JOIN found_by AS f ON f.n = g.n
), stored AS (
  INSERT INTO room_entries (room_id, ts, noise, author, body, about, depth, place, proof)
  SELECT room_id, ts, noise, author, body, about, depth, place, proof FROM placed
), indexed AS (
  INSERT INTO room_unpacked (place, ts, words) SELECT place, ts, words FROM placed WHERE place IS NOT NULL
)
SELECT ts FROM placed ORDER BY n

-- part: expired
-- Entries of this time and before have expired at the time $2.
($2::bigint - (SELECT retention_seconds FROM rooms WHERE room_id = $1) * 1000::bigint)

-- name: page
-- Messages before a time, the newest first.
SELECT {entry} FROM room_entries
WHERE room_id = $1 AND ts < $3 AND ts > {expired} AND body IS NOT NULL ORDER BY ts DESC LIMIT $4

-- name: after
-- Entries after a time, the oldest first.
SELECT {entry} FROM room_entries WHERE room_id = $1 AND ts > greatest($3::bigint, {expired}) ORDER BY ts LIMIT $4

-- name: newest
SELECT last_ts FROM rooms WHERE room_id = $1

-- name: message
SELECT {entry} FROM room_entries WHERE room_id = $1 AND ts = $3 AND noise = $4 AND ts > {expired} AND body IS NOT NULL

-- name: thread
-- A message and the replies under it, at most so many: each with the path of times that leads to it, by which they are in
-- the order of a tree.
WITH RECURSIVE tree AS (
  SELECT e.*, ARRAY[e.ts] AS path FROM room_entries AS e
  WHERE e.room_id = $1 AND e.ts = $3 AND e.noise = $4 AND e.ts > {expired} AND e.body IS NOT NULL
  UNION ALL
  SELECT r.*, t.path || r.ts FROM tree AS t
  JOIN room_entries AS r ON r.room_id = t.room_id AND r.about = substr(int8send(t.ts), 3) || t.noise AND r.body IS NOT NULL
    AND r.ts > {expired}
)
SELECT {entry} FROM (SELECT * FROM tree LIMIT $5) AS found ORDER BY path

-- name: delete
-- Removes a message, and leaves a note that tells readers of the stream. The room is locked first, as by posts and sweeps.
WITH locked AS MATERIALIZED (
  SELECT room_id FROM rooms WHERE room_id = $1 FOR NO KEY UPDATE
), gone AS (
  DELETE FROM room_entries AS e USING locked AS l
  WHERE e.room_id = l.room_id AND e.ts = $2 AND e.noise = $3 AND e.body IS NOT NULL
  RETURNING e.place
), counted AS (
  UPDATE rooms SET last_ts = greatest(last_ts + 1, $4), deletions = deletions + 1,
    sweep_at = coalesce(sweep_at, greatest(last_ts + 1, $4) + retention_seconds * 1000::bigint)
  WHERE room_id = $1 AND EXISTS (SELECT FROM gone)
  RETURNING last_ts
), noted AS (
  INSERT INTO room_entries (room_id, ts, noise, author, about)
  SELECT $1, last_ts, $5, $6, $7 FROM counted
)
SELECT (SELECT place FROM gone) AS place, last_ts AS ts FROM counted

-- name: forget_unpacked
DELETE FROM room_unpacked WHERE place = ANY ($1::bigint[])

-- name: due_rooms
-- Rooms whose oldest entry may be removed. Another process's tick takes others.
SELECT room_id, retention_seconds, archive FROM rooms WHERE sweep_at <= $1 ORDER BY sweep_at LIMIT $2
FOR NO KEY UPDATE SKIP LOCKED

-- name: sweep
-- Removes the oldest entries of a room, at most so many.
DELETE FROM room_entries WHERE room_id = $1 AND ts <= $2 AND ts IN (
  SELECT ts FROM room_entries WHERE room_id = $1 AND ts <= $2 ORDER BY ts LIMIT $3
)
RETURNING place, body IS NOT NULL AS message

-- name: oldest
SELECT ts FROM room_entries WHERE room_id = $1 ORDER BY ts LIMIT 1

-- name: swept
UPDATE rooms SET sweep_at = $2 WHERE room_id = $1

-- name: totals
SELECT count(*) AS rooms, coalesce(sum(message_count), 0)::bigint AS messages, max(last_active) FILTER (WHERE message_count > 0) AS last_active
FROM rooms WHERE NOT is_private

-- name: top
SELECT room_id, name, message_count FROM rooms WHERE NOT is_private ORDER BY message_count DESC, last_active DESC, room_id LIMIT $1
