DROP TRIGGER queue_note_buffered ON queue_buffered;
DROP FUNCTION queue_note_buffered;
DROP TABLE queue_buffered_partitions;
DROP INDEX idx_queue_buffered_partition;
CREATE INDEX idx_queue_buffered_partition ON queue_buffered (queue_name, partition_name);
CREATE OR REPLACE FUNCTION queue_push(
  now_ TIMESTAMPTZ, queue_nos BIGINT[], partition_nos BIGINT[], versions BIGINT[], counts INTEGER[], first_ids UUID[],
  key_ids UUID[], producers TEXT[], bodies BYTEA[], transaction_ids TEXT[], ends INTEGER[], trace_ids TEXT[],
  only_groups BIGINT[] DEFAULT NULL, follows INTEGER[] DEFAULT NULL
) RETURNS TABLE (chunk INTEGER, outcome TEXT, message INTEGER, first_id UUID, number BIGINT) LANGUAGE plpgsql AS $$
DECLARE
  today CONSTANT TIMESTAMPTZ := date_bin('1 day', now_, 'epoch');
  place RECORD;
  part RECORD;
  begins INTEGER;
  room BIGINT;
  created TIMESTAMPTZ;
  ids TEXT[];
  known BOOLEAN;
  refused INTEGER[] := '{}';  -- chunks that were not stored
  plain BOOLEAN;        -- nothing is to be refused
  bases BIGINT[];       -- where each chunk begins
  times TIMESTAMPTZ[];
  places BIGINT[];      -- partition and position of each message
  positions BIGINT[];
BEGIN
  IF (SELECT push_paused FROM queue_modes) THEN
    RETURN QUERY SELECT n::integer, 'paused', NULL::integer, NULL::uuid, NULL::bigint FROM generate_subscripts(counts, 1) AS n;
    RETURN;
  END IF;
  -- In one order for all pushes, so that two of them do not wait for each other.
  PERFORM pg_advisory_xact_lock_shared(k) FROM (SELECT DISTINCT queue_lock(q) AS k FROM unnest(queue_nos) AS q ORDER BY k) AS locks;
  PERFORM pg_advisory_xact_lock(k) FROM (SELECT DISTINCT queue_partition_lock(p) AS k FROM unnest(partition_nos) AS p ORDER BY k) AS locks;
  -- Most calls have nothing to refuse. Then chunks of several partitions are stored by one statement for each table, which takes a
  -- third of what one after the other takes.
  IF only_groups IS NULL AND cardinality(counts) > 1 AND cardinality(counts) = (SELECT count(DISTINCT p) FROM unnest(partition_nos) AS p) THEN
    SELECT array_agg(greatest(e.end_position, p.floor) ORDER BY w.n), array_agg(greatest(now_, e.created_at, p.floor_at) ORDER BY w.n),
      bool_and(coalesce(q.options_version = w.version AND (q.options ->> 'maxSize')::bigint = 0, false))
    INTO bases, times, plain
    FROM unnest(partition_nos, versions) WITH ORDINALITY AS w (partition_no, version, n)
    LEFT JOIN queue_partitions AS p ON p.partition_no = w.partition_no
    LEFT JOIN queues AS q ON q.queue_no = p.queue_no
    LEFT JOIN LATERAL queue_newest(p.partition_no, today) AS e ON true;
    IF plain THEN
      SELECT array_agg(w.partition_no ORDER BY w.n, k), array_agg(bases[w.n] + k - 1 ORDER BY w.n, k) INTO places, positions
      FROM unnest(partition_nos, counts) WITH ORDINALITY AS w (partition_no, count, n) CROSS JOIN generate_series(1, w.count) AS k;
      plain := NOT EXISTS (
        SELECT FROM unnest(places, transaction_ids) AS m (partition_no, id)
        CROSS JOIN LATERAL (
          SELECT FROM queue_ids AS i WHERE i.partition_no = m.partition_no AND i.hash = hashtextextended(m.id, m.partition_no) OFFSET 0
        ) AS h
      );
    END IF;
    IF plain THEN
      INSERT INTO queue_chunks AS k (
        partition_no, end_position, count, stored_at, created_at, first_id, key_id, producer, transaction_ids, trace_ids, ends, body
      )
      SELECT w.partition_no, bases[w.n] + w.count, w.count, times[w.n], times[w.n], w.first_id, w.key_id, w.producer,
        transaction_ids[w.until - w.count + 1 : w.until], trace_ids[w.until - w.count + 1 : w.until], ends[w.until - w.count + 1 : w.until], w.body
      FROM (
        SELECT *, (sum(u.count) OVER (ORDER BY u.n))::integer AS until
        FROM unnest(partition_nos, counts, first_ids, key_ids, producers, bodies)
          WITH ORDINALITY AS u (partition_no, count, first_id, key_id, producer, body, n)
      ) AS w;
      INSERT INTO queue_ids (partition_no, hash, position)
      SELECT m.partition_no, hashtextextended(m.id, m.partition_no), m.position
      FROM unnest(places, transaction_ids, positions) AS m (partition_no, id, position);
      RETURN QUERY SELECT n, 'stored', NULL::integer, NULL::uuid, NULL::bigint FROM generate_subscripts(counts, 1) AS n;
      RETURN;
    END IF;
  END IF;
  FOR part IN
    SELECT n::integer, queue_no, partition_no, version, count, (sum(count) OVER (ORDER BY n))::integer AS until
    FROM unnest(queue_nos, partition_nos, versions, counts) WITH ORDINALITY AS w (queue_no, partition_no, version, count, n)
    ORDER BY queue_no, n
  LOOP
    chunk := part.n;
    refused := refused || chunk;
    IF follows[chunk] = ANY (refused) THEN
      outcome := 'after';
      RETURN NEXT;
      CONTINUE;
    END IF;
    SELECT p.floor, p.floor_at, q.options_version, (q.options ->> 'maxSize')::bigint AS max_size, e.end_position, e.created_at INTO place
    FROM queue_partitions AS p JOIN queues AS q ON q.queue_no = p.queue_no
    LEFT JOIN LATERAL (
      SELECT k.end_position, k.created_at FROM queue_chunks AS k
      WHERE k.partition_no = part.partition_no AND k.stored_at >= today ORDER BY k.end_position DESC LIMIT 1
    ) AS e ON true
    WHERE p.partition_no = part.partition_no;
    IF NOT FOUND THEN
      outcome := 'gone';
      RETURN NEXT;
      CONTINUE;
    END IF;
    IF place.end_position IS NULL THEN
      SELECT e.end_position, e.created_at INTO place.end_position, place.created_at FROM queue_newest(part.partition_no, today) AS e;
    END IF;
    IF place.options_version <> part.version THEN
      outcome := 'stale';
      RETURN NEXT;
      CONTINUE;
    END IF;
    begins := part.until - part.count + 1;
    ids := transaction_ids[begins:part.until];
    known := false;
    IF only_groups IS NULL THEN
      FOR message, first_id, number IN
        SELECT m.n::integer, c.first_id, h.position - c.end_position + c.count
        FROM unnest(ids) WITH ORDINALITY AS m (id, n)
        CROSS JOIN LATERAL (
          SELECT i.position FROM queue_ids AS i
          WHERE i.partition_no = part.partition_no AND i.hash = hashtextextended(m.id, part.partition_no) AND i.position >= place.floor
          OFFSET 0  -- keeps the planner from reading all ids of the partition at once
        ) AS h
        CROSS JOIN LATERAL (
          SELECT * FROM queue_chunks AS c
          WHERE c.partition_no = part.partition_no AND c.end_position > h.position ORDER BY c.end_position LIMIT 1
        ) AS c
        WHERE c.transaction_ids[h.position - c.end_position + c.count + 1] = m.id
      LOOP
        known := true;
        outcome := 'duplicates';
        RETURN NEXT;
      END LOOP;
    END IF;
    message := NULL;
    first_id := NULL;
    number := NULL;
    CONTINUE WHEN known;
    IF place.max_size > 0 THEN
      PERFORM pg_advisory_xact_lock(queue_lock(-part.queue_no));
      room := place.max_size - queue_pending(part.queue_no, today);
      IF room < part.count THEN
        outcome := 'full';
        number := greatest(0, room);
        RETURN NEXT;
        number := NULL;
        CONTINUE;
      END IF;
    END IF;
    created := greatest(now_, place.created_at, place.floor_at);
    INSERT INTO queue_chunks AS c (
      partition_no, end_position, count, stored_at, created_at, first_id, only_group, key_id, producer, transaction_ids, trace_ids, ends, body
    ) VALUES (
      part.partition_no, greatest(place.end_position, place.floor) + part.count, part.count, created, created, first_ids[chunk],
      only_groups[chunk], key_ids[chunk], producers[chunk], ids, trace_ids[begins:part.until], ends[begins:part.until], bodies[chunk]
    );
    INSERT INTO queue_ids (partition_no, hash, position)
    SELECT part.partition_no, hashtextextended(m.id, part.partition_no), greatest(place.end_position, place.floor) + m.n - 1
    FROM unnest(ids) WITH ORDINALITY AS m (id, n);
    refused := trim_array(refused, 1);
    outcome := 'stored';
    RETURN NEXT;
  END LOOP;
END
$$;
