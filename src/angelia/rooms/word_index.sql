-- name: unpacked
-- Looks at the messages that are in no part yet, from a place backwards, at most $3 of them. Returns the places of those that
-- have all words, and where the look ended; NULL if there are no more.
WITH slice AS MATERIALIZED (
  SELECT place, ts, words FROM room_unpacked WHERE place < $2 ORDER BY place DESC LIMIT $3
)
SELECT array(SELECT place FROM slice WHERE words @> $1::bigint[] AND ts > $4 ORDER BY place DESC) AS places,
  CASE WHEN count(*) = $3 THEN min(place) END AS until
FROM slice

-- name: packed
-- The next parts of each class, at most $6, with the places of each word if the part has them all. $2 is where the classes
-- begin, $3 whether parts of late messages are meant or all others, $4 where to go on in each; parts that are older than $5 are
-- left out.
SELECT c.begins, c.late, p.first_place, (
  SELECT array_agg(i.places) FROM room_words AS i WHERE i.part = p.first_place AND i.word = ANY ($1::bigint[])
  HAVING count(*) = cardinality($1)
) AS places
FROM unnest($2::bigint[], $3::boolean[], $4::bigint[]) AS c (begins, late, until)
CROSS JOIN LATERAL (
  (
    SELECT first_place FROM room_parts
    WHERE NOT c.late AND level >= 0 AND first_place >= c.begins AND first_place < c.until AND last_ts > $5
    ORDER BY first_place DESC LIMIT $6
  ) UNION ALL (
    SELECT first_place FROM room_parts
    WHERE c.late AND level = -1 AND first_place >= c.begins AND first_place < c.until AND last_ts > $5
    ORDER BY first_place DESC LIMIT $6
  )
) AS p

-- name: messages
-- The messages at these places that can be read. A place of a message that was deleted, or has expired, is empty.
SELECT e.place, r.room_id, r.name AS room_name, e.ts, e.noise, e.author, e.body FROM unnest($1::bigint[]) AS p (place)
JOIN room_entries AS e ON e.place = p.place
JOIN rooms AS r ON r.room_id = e.room_id
WHERE NOT r.is_private AND e.ts > $2 - r.retention_seconds * 1000::bigint

-- name: waiting
-- How many messages wait to be packed, by the 65,536 places that they are in.
SELECT place >> 16 AS block, count(*) AS count FROM room_unpacked GROUP BY 1 ORDER BY 1

-- name: packed_until
SELECT max(last_place) FROM room_parts WHERE first_place >= $1::bigint << 16 AND first_place < ($1 + 1) << 16 AND level >= 0

-- name: pack
-- Makes a part of the first messages between two places: at most $3, and no more than have $5 words together.
WITH first_ones AS (
  SELECT place, row_number() OVER (ORDER BY place) AS n, sum(cardinality(words)) OVER (ORDER BY place) AS together
  FROM (SELECT * FROM room_unpacked WHERE place >= $1 AND place < $2 ORDER BY place LIMIT $3) AS u
), taken AS (
  DELETE FROM room_unpacked WHERE place >= $1 AND place <= (SELECT max(place) FROM first_ones WHERE n = 1 OR together <= $5)
  RETURNING place, ts, words
), lists AS MATERIALIZED (
  SELECT word, string_agg(substr(int4send((place & 65535)::int), 3), ''::bytea ORDER BY place) AS places
  FROM taken, unnest(words) AS word GROUP BY word
), part AS (
  INSERT INTO room_parts (first_place, last_place, level, words, last_ts)
  SELECT min(place), max(place), $4, (SELECT count(*) FROM lists), max(ts) FROM taken HAVING count(*) > 0
  RETURNING first_place
)
INSERT INTO room_words (part, word, places) SELECT part.first_place, word, places FROM lists, part

-- name: mergeable
-- A block that has many parts of one level, or is complete and still has several: a later one of its class has begun.
SELECT block, level FROM (
  SELECT first_place >> 16 AS block, level, count(*) AS count FROM room_parts WHERE level < 100 GROUP BY 1, 2
) AS p
WHERE count >= $1 OR count > 1 AND EXISTS (
  SELECT FROM room_parts AS later WHERE later.first_place >= (block + 1) << 16 AND later.first_place < ((block >> 32) + 1) << 48
)
ORDER BY 1, 2 LIMIT 1

-- name: parts_of_level
SELECT first_place, words FROM room_parts
WHERE first_place >= $1::bigint << 16 AND first_place < ($1 + 1) << 16 AND level = $2 ORDER BY first_place LIMIT $3

-- name: merge
-- Makes one part of several that follow each other: their lists of places, one after the other. The old rows are gone before the
-- new ones are written, since these are made of all of them.
WITH old_parts AS (
  DELETE FROM room_parts WHERE first_place = ANY ($1::bigint[]) RETURNING *
), old_words AS (
  DELETE FROM room_words WHERE part = ANY ($1::bigint[]) RETURNING *
), lists AS MATERIALIZED (
  SELECT word, string_agg(places, ''::bytea ORDER BY part) AS places FROM old_words GROUP BY word
), part AS (
  INSERT INTO room_parts (first_place, last_place, level, words, last_ts)
  SELECT min(first_place), max(last_place), max(level) + 1, (SELECT count(*) FROM lists), max(last_ts) FROM old_parts
  RETURNING first_place
)
INSERT INTO room_words (part, word, places) SELECT part.first_place, word, places FROM lists, part

-- name: merge_late
-- The same for messages that came late, whose parts lie within each other: their places are put in order.
WITH old_parts AS (
  DELETE FROM room_parts WHERE first_place = ANY ($1::bigint[]) RETURNING *
), old_words AS (
  DELETE FROM room_words WHERE part = ANY ($1::bigint[]) RETURNING *
), lists AS MATERIALIZED (
  SELECT word, string_agg(substr(places, 2 * n - 1, 2), ''::bytea ORDER BY substr(places, 2 * n - 1, 2)) AS places
  FROM old_words, generate_series(1, octet_length(places) / 2) AS n GROUP BY word
), part AS (
  INSERT INTO room_parts (first_place, last_place, level, words, last_ts)
  SELECT min(first_place), max(last_place), max(level), (SELECT count(*) FROM lists), max(last_ts) FROM old_parts
  RETURNING first_place
)
INSERT INTO room_words (part, word, places) SELECT part.first_place, word, places FROM lists, part

-- name: too_large
UPDATE room_parts SET level = 100 WHERE first_place = ANY ($1::bigint[])

-- name: old_part
-- A part whose messages have all expired: $1 is where the classes begin, $2 the time of each.
SELECT p.first_place FROM unnest($1::bigint[], $2::bigint[]) AS c (begins, expired)
CROSS JOIN LATERAL (
  SELECT first_place FROM room_parts
  WHERE last_ts <= c.expired AND first_place >= c.begins AND first_place < c.begins + (1::bigint << 48) ORDER BY last_ts LIMIT 1
) AS p LIMIT 1

-- name: drop_words
DELETE FROM room_words WHERE part = $1 AND word IN (SELECT word FROM room_words WHERE part = $1 LIMIT $2)

-- name: drop_part
DELETE FROM room_parts WHERE first_place = $1

-- name: size
SELECT pg_total_relation_size('room_words') + pg_total_relation_size('room_parts') + pg_total_relation_size('room_unpacked')
