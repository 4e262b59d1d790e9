-- name: page
-- Of the next $2 partitions, the first $3 in which messages may not wait for ever, for how long they may in each, and whether all
-- was quiet after $4; and the last one that was looked at.
WITH looked AS MATERIALIZED (
  SELECT partition_no, queue_no, options, quiet_at FROM queue_partitions WHERE partition_no > $1 ORDER BY partition_no LIMIT $2
), due AS MATERIALIZED (
  SELECT p.partition_no, o.seconds, coalesce(p.quiet_at > $4, false) AS quiet FROM looked AS p
  CROSS JOIN LATERAL (SELECT q.options FROM queues AS q WHERE q.queue_no = p.queue_no LIMIT 1) AS q
  CROSS JOIN LATERAL (SELECT ((q.options || p.options) ->> 'maxWaitTimeSeconds')::bigint AS seconds) AS o
  WHERE o.seconds > 0 ORDER BY p.partition_no LIMIT $3
)
SELECT l.count, l.last, d.partition_nos, d.seconds, d.quiet
FROM (SELECT count(*) AS count, max(partition_no) AS last FROM looked) AS l
CROSS JOIN (
  SELECT array_agg(partition_no ORDER BY partition_no) AS partition_nos, array_agg(seconds ORDER BY partition_no) AS seconds,
    array_agg(quiet ORDER BY partition_no) AS quiet FROM due
) AS d

-- name: evict
-- Marks messages that waited too long, no consumer group consumed and none has leased; in each partition of $3 messages at most.
-- All is arithmetic with sets of positions; of the messages, only the first younger one is looked for. A row that
-- another transaction holds or has changed is left for the next time. No table of a day is opened before $5 to look for a message
-- that is not late, nor before $6 to look for one that is: there is none.
WITH asked AS MATERIALIZED (
  SELECT p.partition_no, p.queue_no, q.name AS queue_name, p.floor, p.floor_at, p.removed, p.evicted, p.quiet_end, p.quiet_at,
    ((q.options || p.options) ->> 'maxWaitTimeSeconds')::bigint AS seconds,
    $2::timestamptz - ((q.options || p.options) ->> 'maxWaitTimeSeconds')::bigint * interval '1 second' AS cutoff
  FROM unnest($1::bigint[]) AS w (partition_no)
  CROSS JOIN LATERAL (SELECT * FROM queue_partitions AS p WHERE p.partition_no = w.partition_no LIMIT 1) AS p
  CROSS JOIN LATERAL (SELECT * FROM queues AS q WHERE q.queue_no = p.queue_no LIMIT 1) AS q
  WHERE ((q.options || p.options) ->> 'maxWaitTimeSeconds')::bigint > 0
), read AS MATERIALIZED (
  SELECT a.*, c.done, c.leased, queue_position_after(a.floor, c.done) AS first
  FROM asked AS a
  CROSS JOIN LATERAL (
    SELECT coalesce(range_agg(s.settled), '{}') + a.removed + a.evicted AS done,
      coalesce(
        range_agg(int8range(s.position, greatest(s.position, s.lease_end))) FILTER (WHERE s.lease_id IS NOT NULL AND s.lease_until > $2), '{}'
      ) AS leased
    FROM queue_groups AS g
    CROSS JOIN LATERAL (
      SELECT * FROM queue_cursors AS k
      WHERE k.partition_no = a.partition_no AND k.group_no = g.group_no ORDER BY k.version DESC LIMIT 1
    ) AS s
    WHERE g.queue_no = a.queue_no
  ) AS c
), found AS MATERIALIZED (
  SELECT r.*, int8multirange(int8range(r.first, greatest(r.first, coalesce(younger.position, known.position)))) - r.done - r.leased AS late,
    younger.position IS NULL AND known.position IS NULL AND (r.quiet_at IS NULL OR r.quiet_at < $2::timestamptz - interval '8 days') AS quiet
  FROM read AS r
  LEFT JOIN LATERAL (
    SELECT c.end_position - c.count AS position FROM queue_chunks AS c
    WHERE c.partition_no = r.partition_no AND c.end_position > r.first AND c.end_position <= r.first + $3
      AND c.stored_at > $5 AND c.stored_at > r.cutoff AND c.created_at > r.cutoff
    ORDER BY c.end_position LIMIT 1
  ) AS younger ON true
  -- None is younger: all are late.
  LEFT JOIN LATERAL (
    SELECT c.end_position AS position FROM queue_chunks AS c
    WHERE c.partition_no = r.partition_no AND c.end_position > r.first AND c.end_position <= r.first + $3
      AND c.stored_at >= $6 AND c.stored_at >= coalesce(r.quiet_at, r.floor_at, '-infinity')
    ORDER BY c.end_position DESC LIMIT 1
  ) AS last ON younger.position IS NULL
  -- A consumer group may have gone back since all was quiet.
  CROSS JOIN LATERAL (
    SELECT greatest(last.position, CASE WHEN r.quiet_end > r.first AND r.quiet_end <= r.first + $3 THEN r.quiet_end END) AS position
  ) AS known
), held AS MATERIALIZED (
  SELECT f.* FROM found AS f
  CROSS JOIN LATERAL (
    SELECT FROM queue_partitions AS p
    WHERE p.partition_no = f.partition_no AND p.floor = f.floor AND p.removed = f.removed AND p.evicted = f.evicted
    FOR NO KEY UPDATE SKIP LOCKED
  ) AS locked
  WHERE NOT isempty(f.late) OR f.quiet
), marked AS (
  UPDATE queue_partitions AS p SET
    evicted = p.evicted + h.late,
    quiet_end = CASE WHEN h.quiet THEN h.first ELSE p.quiet_end END,
    -- A push that began yesterday may still be on its way.
    quiet_at = CASE WHEN h.quiet THEN date_bin('1 day', $2, 'epoch') - interval '1 day' ELSE p.quiet_at END
  FROM held AS h WHERE p.partition_no = h.partition_no
  RETURNING h.partition_no, h.queue_no, h.queue_name, h.floor_at, h.seconds, h.late
), counted AS MATERIALIZED (
  SELECT m.*, queue_count(m.late) AS count, extract(epoch FROM $2 - c.created_at)::double precision AS oldest_seconds
  FROM marked AS m
  CROSS JOIN LATERAL (
    SELECT c.created_at FROM queue_chunks AS c
    WHERE c.partition_no = m.partition_no AND c.end_position > lower(m.late) AND c.stored_at >= coalesce(m.floor_at, '-infinity')
    ORDER BY c.end_position LIMIT 1
  ) AS c
  WHERE NOT isempty(m.late)
), longer AS (
  -- How many waited longer than each bound. Most often all wait between the same two, and none is looked up.
  SELECT c.queue_no, b.n, sum(CASE
      WHEN b.seconds < c.seconds THEN c.count
      WHEN b.seconds >= c.oldest_seconds THEN 0
      ELSE coalesce(queue_count(c.late * int8multirange(int8range(NULL, younger.position))), c.count)
    END) AS count
  FROM counted AS c
  CROSS JOIN unnest($4::double precision[]) WITH ORDINALITY AS b (seconds, n)
  LEFT JOIN LATERAL (
    SELECT k.end_position - k.count AS position FROM queue_chunks AS k
    WHERE k.partition_no = c.partition_no AND k.end_position > lower(c.late)
      AND k.stored_at >= $2 - b.seconds * interval '1 second' AND k.created_at >= $2 - b.seconds * interval '1 second'
    ORDER BY k.end_position LIMIT 1
  ) AS younger ON b.seconds >= c.seconds AND b.seconds < c.oldest_seconds
  GROUP BY c.queue_no, b.n
), totals AS (
  SELECT queue_no, queue_name, sum(count)::bigint AS count, max(count) AS most, max(oldest_seconds) AS oldest_seconds
  FROM counted GROUP BY queue_no, queue_name
), noted AS (
  INSERT INTO queue_evictions AS e (queue_no, hour, count, oldest_seconds, waited)
  SELECT t.queue_no, date_bin('1 hour', $2, 'epoch'), t.count, t.oldest_seconds, ARRAY(
      SELECT (coalesce(lag(w.count) OVER (ORDER BY w.n), t.count) - w.count)::bigint
      FROM (SELECT n, count FROM longer AS l WHERE l.queue_no = t.queue_no UNION ALL SELECT cardinality($4) + 1, 0) AS w ORDER BY w.n
    )
  FROM totals AS t ORDER BY t.queue_no
  ON CONFLICT (queue_no, hour) DO UPDATE SET
    count = e.count + excluded.count, oldest_seconds = greatest(e.oldest_seconds, excluded.oldest_seconds),
    waited = (SELECT array_agg(a + b ORDER BY n) FROM unnest(e.waited, excluded.waited) WITH ORDINALITY AS s (a, b, n))
)
SELECT queue_no, queue_name, count, most, oldest_seconds FROM totals
