-- part: chosen
-- Dead letters with the names of their queue, partition and consumer group, as a filter chooses them.
queue_dead_letters AS d
JOIN queues AS q ON q.queue_no = d.queue_no
JOIN queue_partitions AS p ON p.partition_no = d.partition_no
JOIN queue_groups AS g ON g.group_no = d.group_no
WHERE ($1::text IS NULL OR q.name = $1) AND ($2::text IS NULL OR p.name = $2) AND ($3::text IS NULL OR g.name = $3)
  AND ($4::timestamptz IS NULL OR d.failed_at >= $4) AND ($5::timestamptz IS NULL OR d.failed_at <= $5)
  AND ($6::text IS NULL OR d.error LIKE $6) AND ($7::text IS NULL OR d.transaction_id = $7)
  AND ($8::uuid IS NULL OR p.partition_id = $8)

-- name: page
-- Newest first.
SELECT d.letter_no, d.queue_no, d.partition_no, p.partition_id, q.name AS queue, p.name AS partition, g.name AS group, d.position, d.message_id,
  d.transaction_id, d.trace_id, d.producer, d.key_id, d.body, d.error, d.attempts, d.created_at, d.failed_at
FROM {chosen}
ORDER BY d.failed_at DESC, d.letter_no DESC LIMIT $9 OFFSET $10

-- name: count
SELECT count(*) FROM {chosen}

-- name: take
-- Removes dead letters, the oldest first, and returns them. Of letters about one message of one consumer group, the newest.
WITH chosen AS MATERIALIZED (
  SELECT d.letter_no FROM {chosen} ORDER BY d.letter_no LIMIT $9 FOR UPDATE OF d
), taken AS (
  DELETE FROM queue_dead_letters AS d USING chosen AS c WHERE d.letter_no = c.letter_no RETURNING d.*
)
SELECT DISTINCT ON (t.position, t.group_no, t.partition_no) t.letter_no, t.queue_no, t.partition_no, p.partition_id, q.name AS queue, p.name AS partition,
  g.name AS group, t.group_no, q.options_version, t.position, t.message_id, t.transaction_id, t.trace_id, t.producer, t.key_id, t.body, t.error, t.attempts,
  t.created_at, t.failed_at
FROM taken AS t
JOIN queues AS q ON q.queue_no = t.queue_no
JOIN queue_partitions AS p ON p.partition_no = t.partition_no
JOIN queue_groups AS g ON g.group_no = t.group_no
ORDER BY t.position, t.group_no, t.partition_no, t.letter_no DESC

-- name: purge
WITH chosen AS MATERIALIZED (SELECT d.letter_no FROM {chosen} ORDER BY d.letter_no LIMIT $9)
DELETE FROM queue_dead_letters AS d USING chosen AS c WHERE d.letter_no = c.letter_no

-- name: put_back
-- Stores copies at the end of their partitions, each for its consumer group only, with the id of the original.
SELECT chunk, outcome FROM queue_push($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: mark
-- Remembers where copies are: the newest of their message.
INSERT INTO queue_put_back (partition_no, position, group_no)
SELECT w.partition_no, i.position, w.group_no
FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS w (partition_no, transaction_id, group_no)
CROSS JOIN LATERAL (
  SELECT c.end_position - c.count AS position FROM queue_ids AS h
  CROSS JOIN LATERAL (
    SELECT c.end_position, c.count, c.only_group FROM queue_chunks AS c
    WHERE c.partition_no = w.partition_no AND c.end_position > h.position ORDER BY c.end_position LIMIT 1
  ) AS c
  WHERE h.partition_no = w.partition_no AND h.hash = hashtextextended(w.transaction_id, w.partition_no) AND c.only_group = w.group_no
) AS i
ON CONFLICT DO NOTHING

-- name: prune_marks
DELETE FROM queue_put_back AS b USING (
  SELECT b.partition_no, b.position FROM queue_put_back AS b LEFT JOIN queue_partitions AS p ON p.partition_no = b.partition_no
  WHERE p.partition_no IS NULL OR b.position < p.floor LIMIT $1
) AS old
WHERE b.partition_no = old.partition_no AND b.position = old.position
