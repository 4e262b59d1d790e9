-- queues: what a push, a pop and an acknowledgment do, each in one call.
CREATE FUNCTION queue_message_id(first_id UUID, number BIGINT) RETURNS UUID LANGUAGE sql IMMUTABLE AS $$
  SELECT (encode(substr(uuid_send(first_id), 1, 10), 'hex')
    || lpad(to_hex(('x' || encode(substr(uuid_send(first_id), 11, 6), 'hex'))::bit(48)::bigint + number), 12, '0'))::uuid
$$;

-- The locks. A push holds its queue shared and its partitions alone, so that positions follow the order of commits; a queue is
-- deleted under its lock alone. Pops and acknowledgments hold the cursors that they change.
CREATE FUNCTION queue_lock(queue_no BIGINT) RETURNS BIGINT LANGUAGE sql IMMUTABLE AS $$
  SELECT hashint8extended(queue_no, 7102)
$$;
CREATE FUNCTION queue_partition_lock(partition_no BIGINT) RETURNS BIGINT LANGUAGE sql IMMUTABLE AS $$
  SELECT hashint8extended(partition_no, 7103)
$$;
CREATE FUNCTION queue_cursor_lock(partition_no BIGINT, group_no BIGINT) RETURNS BIGINT LANGUAGE sql IMMUTABLE AS $$
  SELECT hashint8extended(partition_no, group_no << 16 | 7104)
$$;

-- The newest chunk of a partition. Most partitions that are asked about were written to today.
CREATE FUNCTION queue_newest(p BIGINT, today TIMESTAMPTZ, OUT end_position BIGINT, OUT created_at TIMESTAMPTZ) LANGUAGE plpgsql STABLE AS $$
BEGIN
  SELECT c.end_position, c.created_at INTO end_position, created_at FROM queue_chunks AS c
  WHERE c.partition_no = p AND c.stored_at >= today ORDER BY c.end_position DESC LIMIT 1;
  IF end_position IS NULL THEN
    SELECT c.end_position, c.created_at INTO end_position, created_at FROM queue_chunks AS c
    WHERE c.partition_no = p ORDER BY c.end_position DESC LIMIT 1;
  END IF;
END
$$;

CREATE FUNCTION queue_count(messages INT8MULTIRANGE) RETURNS BIGINT LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(sum(upper(r) - lower(r)), 0)::bigint FROM unnest(messages) AS r
$$;

-- Messages of a queue that some consumer group has still to consume, without evicted ones; of a queue without groups, all.
CREATE FUNCTION queue_pending(q BIGINT, today TIMESTAMPTZ) RETURNS BIGINT LANGUAGE sql STABLE AS $$
  SELECT coalesce(sum(greatest(0, n.end_position - greatest(p.floor, g.position)) - CASE WHEN isempty(p.evicted) THEN 0
      ELSE queue_count(p.evicted * int8multirange(int8range(greatest(p.floor, g.position), greatest(p.floor, g.position, n.end_position)))) END), 0)::bigint
  FROM queue_partitions AS p
  CROSS JOIN LATERAL queue_newest(p.partition_no, today) AS n
  CROSS JOIN LATERAL (
    SELECT coalesce(min(coalesce(c.position, 0)), 0) AS position
    FROM queue_groups AS w
    LEFT JOIN LATERAL (
      SELECT position FROM queue_cursors WHERE partition_no = p.partition_no AND group_no = w.group_no ORDER BY version DESC LIMIT 1
    ) AS c ON true
    WHERE w.queue_no = q
  ) AS g
  WHERE p.queue_no = q AND n.end_position IS NOT NULL
$$;

-- Stores chunks, and returns for each how it went:
--   stored      all its messages are there
--   duplicates  nothing was stored: these of its messages are there already, each by the first id of its chunk and its number in it
--   full        nothing was stored: the queue has room for so many of them
--   stale       nothing was stored: the queue's options have changed
--   gone        nothing was stored: its partition was deleted
--   paused      nothing was stored: pushes are buffered
--   after       nothing was stored: the chunk that it follows was not, and messages of a push keep their order
-- Messages of all chunks lie one after the other in transaction_ids, ends and trace_ids.
CREATE FUNCTION queue_push(
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

-- The first messages of a set, at most so many.
CREATE FUNCTION queue_first_of(messages INT8MULTIRANGE, most BIGINT) RETURNS INT8MULTIRANGE LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(range_agg(int8range(lower(r), least(upper(r), lower(r) + most - before))), '{}')
  FROM (
    SELECT r, (sum(upper(r) - lower(r)) OVER (ORDER BY r))::bigint - (upper(r) - lower(r)) AS before FROM unnest(messages) AS r
  ) AS w
  WHERE before < most
$$;

-- The first position from `at` on that is not in a set.
CREATE FUNCTION queue_position_after(at BIGINT, messages INT8MULTIRANGE) RETURNS BIGINT LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce((SELECT upper(r) FROM unnest(messages) AS r WHERE r @> at), at)
$$;

-- Claims messages for several requests, for each at most about 16 MiB. Candidates are partitions that may have messages, in the order in
-- which they are to be tried; each says which request it is for. Rows of messages come first:
--   messages   those of one chunk from its number `number` on, with the ends of their payloads in its body, which is cut to begin at
--              `base`. `open` has the positions that are delivered; NULL means all of this row.
-- and then one row for each candidate that was looked at; `more` says that it has further messages now:
--   claimed    its messages are above; leased until then, or, without a lease, `until` says when further messages are due
--   empty      no message waits
--   leased     another consumer has it until then
--   later      its messages are to be delivered then
--   contended  another transaction is at work on this cursor
--   gone       the partition or the consumer group was deleted
--   paused     pops are answered with nothing
CREATE FUNCTION queue_pop(
  now_ TIMESTAMPTZ, batches INTEGER[], most_partitions INTEGER[], auto_acks BOOLEAN[], lease_ids UUID[], consumers TEXT[],
  candidate_requests INTEGER[], candidate_partitions BIGINT[], candidate_groups BIGINT[]
) RETURNS TABLE (
  candidate INTEGER, outcome TEXT, until TIMESTAMPTZ, more BOOLEAN, start_position BIGINT, created_at TIMESTAMPTZ, first_id UUID, number INTEGER,
  key_id UUID, producer TEXT, transaction_ids TEXT[], trace_ids TEXT[], base INTEGER, ends INTEGER[], body BYTEA, open INT8MULTIRANGE
) LANGUAGE plpgsql AS $$
DECLARE
  taken INTEGER[] := array_fill(0, ARRAY[cardinality(batches)]);      -- messages, by request
  claimed INTEGER[] := array_fill(0, ARRAY[cardinality(batches)]);    -- partitions, by request
  sizes BIGINT[] := array_fill(0, ARRAY[cardinality(batches)]);       -- bytes of payloads, by request
  most_bytes CONSTANT BIGINT := 16777216;                             -- of a request; and four times as many of a call
  total BIGINT := 0;
  r INTEGER;            -- the request of a candidate
  p BIGINT;
  g BIGINT;
  place RECORD;         -- the partition, its options and the newest version of the cursor
  c RECORD;             -- a chunk
  at BIGINT;            -- the first message that is not settled, passed or expired
  lease_end BIGINT;
  wanted BIGINT;
  lo BIGINT;
  hi BIGINT;
  free INT8MULTIRANGE;  -- messages of a chunk that are neither settled nor deleted
  settled INT8MULTIRANGE;
  passed INT8MULTIRANGE;
  delivered INT8MULTIRANGE;
  read_at TIMESTAMPTZ;
  newest TIMESTAMPTZ;
  got INTEGER;
  leased BOOLEAN;
BEGIN
  IF (SELECT pop_paused FROM queue_modes) THEN
    outcome := 'paused';
    RETURN NEXT;
    RETURN;
  END IF;
  -- A lease that a crash forgets leads to a second delivery, and its acknowledgment is refused; so it need not wait for the disk.
  IF NOT true = ANY (auto_acks) THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  END IF;
  FOR n IN 1 .. cardinality(candidate_requests) LOOP
    EXIT WHEN total >= 4 * most_bytes;
    candidate := n;
    r := candidate_requests[candidate];
    CONTINUE WHEN sizes[r] >= most_bytes OR claimed[r] >= most_partitions[r] OR taken[r] >= batches[r];
    p := candidate_partitions[candidate];
    g := candidate_groups[candidate];
    until := NULL;
    more := NULL;
    IF NOT pg_try_advisory_xact_lock(queue_cursor_lock(p, g)) THEN
      outcome := 'contended';
      RETURN NEXT;
      CONTINUE;
    END IF;
    SELECT w.floor, w.floor_at, w.removed + w.evicted AS removed, q.options || w.options AS options, s.* INTO place
    FROM queue_partitions AS w JOIN queues AS q ON q.queue_no = w.queue_no JOIN queue_groups AS o ON o.group_no = g AND o.queue_no = w.queue_no
    LEFT JOIN LATERAL (
      SELECT k.ctid AS tuple, k.* FROM queue_cursors AS k WHERE k.partition_no = p AND k.group_no = g ORDER BY k.version DESC LIMIT 1
    ) AS s ON true
    WHERE w.partition_no = p;
    IF NOT FOUND THEN
      outcome := 'gone';
      RETURN NEXT;
      CONTINUE;
    END IF;
    IF place.lease_id IS NOT NULL AND place.lease_until > now_ OR place.retry_at > now_ THEN
      outcome := CASE WHEN place.retry_at > now_ THEN 'later' ELSE 'leased' END;
      until := CASE WHEN place.retry_at > now_ THEN place.retry_at ELSE place.lease_until END;
      RETURN NEXT;
      CONTINUE;
    END IF;

    at := greatest(place.position, place.floor);
    settled := coalesce(place.settled, '{}');
    passed := '{}';
    delivered := '{}';
    lease_end := at;
    read_at := NULL;
    wanted := batches[r] - taken[r];
    got := 0;
    more := false;
    FOR c IN
      SELECT k.end_position, k.count, k.stored_at, k.created_at, k.first_id, k.only_group, k.key_id, k.producer, k.transaction_ids, k.trace_ids,
        k.ends, k.body
      FROM queue_chunks AS k
      WHERE k.partition_no = p AND k.end_position > at AND k.stored_at >= coalesce(place.read_at, place.floor_at, '-infinity')
        AND k.stored_at < now_ + interval '1 day'
      ORDER BY k.end_position
    LOOP
      IF (place.options ->> 'maxWaitTimeSeconds')::bigint > 0
        AND c.created_at <= now_ - (place.options ->> 'maxWaitTimeSeconds')::bigint * interval '1 second' THEN
        at := c.end_position;
        lease_end := at;
        CONTINUE;
      END IF;
      read_at := coalesce(read_at, c.stored_at);
      IF wanted <= 0 THEN
        more := true;
        EXIT;
      END IF;
      IF (place.options ->> 'delayedProcessing')::bigint > 0 AND c.created_at > now_ - (place.options ->> 'delayedProcessing')::bigint * interval '1 second' THEN
        until := c.created_at + (place.options ->> 'delayedProcessing')::bigint * interval '1 second';
        EXIT;
      END IF;
      IF got = 0 AND (place.options ->> 'windowBuffer')::bigint > 0 THEN
        -- A steady stream must not keep the window shut for ever: the oldest message waits ten windows at most.
        SELECT n.created_at INTO newest FROM queue_newest(p, date_bin('1 day', now_, 'epoch')) AS n;
        until := least(newest, c.created_at + 9 * (place.options ->> 'windowBuffer')::bigint * interval '1 second')
          + (place.options ->> 'windowBuffer')::bigint * interval '1 second';
        EXIT WHEN until > now_;
        until := NULL;
      END IF;
      lo := greatest(c.end_position - c.count, at);
      hi := c.end_position;
      open := NULL;
      IF c.only_group IS NOT NULL AND c.only_group <> g THEN
        passed := passed + int8multirange(int8range(lo, hi));
        lease_end := hi;
        CONTINUE;
      END IF;
      IF settled && int8range(lo, hi) OR place.removed && int8range(lo, hi) THEN
        passed := passed + place.removed * int8multirange(int8range(lo, hi));
        free := int8multirange(int8range(lo, hi)) - settled - place.removed;
        open := queue_first_of(free, wanted);
        lease_end := CASE WHEN open = free THEN hi ELSE upper(open) END;
        CONTINUE WHEN isempty(open);
        more := more OR open <> free;
        lo := lower(open);
        hi := upper(open);
        wanted := wanted - queue_count(open);
        got := got + queue_count(open);
        delivered := delivered + open;
      ELSE
        hi := least(hi, lo + wanted);
        lease_end := hi;
        more := more OR hi < c.end_position;
        wanted := wanted - (hi - lo);
        got := got + (hi - lo);
        delivered := delivered + int8multirange(int8range(lo, hi));
      END IF;
      outcome := 'messages';
      start_position := lo;
      created_at := c.created_at;
      first_id := c.first_id;
      number := lo - c.end_position + c.count;
      key_id := c.key_id;
      producer := c.producer;
      transaction_ids := c.transaction_ids[number + 1 : number + hi - lo];
      trace_ids := c.trace_ids[number + 1 : number + hi - lo];
      ends := c.ends[number + 1 : number + hi - lo];
      base := CASE WHEN number = 0 THEN 0 ELSE c.ends[number] END;
      body := substr(c.body, base + 1, ends[cardinality(ends)] - base);
      sizes[r] := sizes[r] + length(body);
      IF sizes[r] >= most_bytes THEN
        wanted := 0;
      END IF;
      RETURN NEXT;
      EXIT WHEN more;
    END LOOP;
    outcome := CASE WHEN got > 0 THEN 'claimed' WHEN until IS NOT NULL THEN 'later' ELSE 'empty' END;
    leased := got > 0 AND NOT auto_acks[r];
    IF leased THEN
      until := now_ + coalesce(nullif((place.options ->> 'leaseTime')::bigint, 0), 60) * interval '1 second';
    END IF;
    transaction_ids := NULL;
    trace_ids := NULL;
    ends := NULL;
    body := NULL;
    RETURN NEXT;
    -- Without messages only the position may have changed: what expired or was passed over is not looked at again.
    CONTINUE WHEN got = 0 AND lease_end <= coalesce(place.position, 0);
    taken[r] := taken[r] + got;
    total := (SELECT sum(size) FROM unnest(sizes) AS size);
    claimed[r] := claimed[r] + least(got, 1);
    IF got = 0 OR auto_acks[r] THEN
      settled := settled + delivered;
      at := lease_end;
    ELSE
      at := queue_position_after(at, settled + passed);
    END IF;
    IF (SELECT count(*) FROM unnest(settled)) > 1000 THEN
      settled := settled + int8multirange(int8range(0, at));  -- as in queue_ack
    END IF;
    INSERT INTO queue_cursors AS k (
      partition_no, group_no, version, position, settled, passed, attempts, lease_id, lease_end, lease_until, leased_by, read_at, consumed, consumed_at,
      changed_at
    ) VALUES (
      p, g, coalesce(place.version, 0) + 1, at, settled, passed, CASE WHEN at = place.position THEN place.attempts ELSE 0 END,
      CASE WHEN leased THEN lease_ids[r] END, CASE WHEN leased THEN lease_end END, CASE WHEN leased THEN until END,
      CASE WHEN leased THEN consumers[r] END,
      coalesce(read_at, place.read_at), coalesce(place.consumed, 0) + CASE WHEN auto_acks[r] THEN got ELSE 0 END,
      CASE WHEN auto_acks[r] AND got > 0 THEN now_ ELSE place.consumed_at END, now_
    );
    DELETE FROM queue_cursors AS k WHERE k.ctid = place.tuple;
  END LOOP;
END
$$;

-- Copies messages of a partition to the dead letters of a consumer group, each with its error. A message that was replayed and fails again
-- takes the place of its letter.
CREATE FUNCTION queue_bury(now_ TIMESTAMPTZ, q BIGINT, p BIGINT, g BIGINT, positions BIGINT[], errors TEXT[], attempts_ INTEGER) RETURNS VOID
LANGUAGE sql AS $$
  DELETE FROM queue_dead_letters WHERE partition_no = p AND group_no = g AND position = ANY (positions);
  INSERT INTO queue_dead_letters (
    queue_no, partition_no, group_no, position, message_id, transaction_id, trace_id, producer, key_id, body, error, attempts, created_at, failed_at
  )
  SELECT q, p, g, d.position, queue_message_id(c.first_id, c.number), c.transaction_ids[c.number + 1], c.trace_ids[c.number + 1], c.producer, c.key_id,
    substr(c.body, coalesce(c.ends[c.number], 0) + 1, c.ends[c.number + 1] - coalesce(c.ends[c.number], 0)),
    coalesce(d.error, 'Retries exhausted'), attempts_, c.created_at, now_
  FROM unnest(positions, errors) AS d (position, error)
  CROSS JOIN LATERAL (
    SELECT k.*, (d.position - k.end_position + k.count)::integer AS number FROM queue_chunks AS k
    WHERE k.partition_no = p AND k.end_position > d.position ORDER BY k.end_position LIMIT 1
  ) AS c
$$;

-- Settles messages for several requests. A settlement is about one cursor and one lease, or none; its messages lie together in
-- transaction_ids, statuses ('completed', 'failed', 'retry', 'dlq'; NULL: all are completed) and errors (NULL: none has one).
-- Returns one row for each settlement, with numbers of its messages from 1 on: those that were refused and why ('not_found': the
-- partition has no such message; 'lease': the lease is over, or another's), those that became dead letters; and whether the lease
-- ended, and the partition has further messages, from when on.
CREATE FUNCTION queue_ack(
  now_ TIMESTAMPTZ, partition_nos BIGINT[], group_nos BIGINT[], lease_ids UUID[], counts INTEGER[],
  transaction_ids TEXT[], statuses TEXT[], errors TEXT[]
) RETURNS TABLE (refused INTEGER[], refusals TEXT[], dead INTEGER[], released BOOLEAN, more BOOLEAN, until TIMESTAMPTZ) LANGUAGE plpgsql AS $$
DECLARE
  part RECORD;
  place RECORD;         -- the partition, its options and the newest version of the cursor
  c RECORD;             -- a chunk
  ids TEXT[];
  begins INTEGER;
  mine TEXT;            -- what the lease of the settlement is: live, ended or lost
  positions BIGINT[];
  outcomes TEXT[];
  at BIGINT;
  position_ BIGINT;
  settled INT8MULTIRANGE;
  failed INT8MULTIRANGE;
  given_up INT8MULTIRANGE;
  left_ INT8MULTIRANGE; -- messages of the lease that are not settled
  ends_ BOOLEAN;        -- whether a failure ends the lease
  attempts_ INTEGER;
  retry_at_ TIMESTAMPTZ;
  newly BIGINT;         -- messages that this settles
BEGIN
  -- In one order for all, so that two that settle the same messages do not wait for each other.
  PERFORM pg_advisory_xact_lock(k) FROM (
    SELECT DISTINCT queue_cursor_lock(p, g) AS k FROM unnest(partition_nos, group_nos) AS w (p, g) ORDER BY k
  ) AS locks;
  FOR part IN
    SELECT partition_no, group_no, lease_id, count, (sum(count) OVER (ORDER BY w.n))::integer AS until
    FROM unnest(partition_nos, group_nos, lease_ids, counts) WITH ORDINALITY AS w (partition_no, group_no, lease_id, count, n)
    ORDER BY w.n
  LOOP
    begins := part.until - part.count + 1;
    ids := transaction_ids[begins:part.until];
    refused := NULL;
    refusals := NULL;
    dead := NULL;
    released := false;
    more := false;
    until := NULL;
    SELECT w.queue_no, w.floor, w.removed, q.options || w.options AS options, s.* INTO place
    FROM queue_partitions AS w JOIN queues AS q ON q.queue_no = w.queue_no
    JOIN queue_groups AS o ON o.group_no = part.group_no AND o.queue_no = w.queue_no
    LEFT JOIN LATERAL (
      SELECT k.ctid AS tuple, k.* FROM queue_cursors AS k
      WHERE k.partition_no = part.partition_no AND k.group_no = part.group_no ORDER BY k.version DESC LIMIT 1
    ) AS s ON true
    WHERE w.partition_no = part.partition_no;
    IF NOT FOUND THEN
      refused := ARRAY(SELECT generate_series(1, part.count));
      refusals := array_fill('not_found'::text, ARRAY[part.count]);
      RETURN NEXT;
      CONTINUE;
    END IF;

    at := greatest(place.position, place.floor);
    settled := coalesce(place.settled, '{}');
    failed := '{}';
    given_up := '{}';
    ends_ := false;
    positions := NULL;
    IF statuses IS NULL AND part.lease_id = place.lease_id AND place.lease_until > now_ AND place.lease_end - at = part.count
      AND isempty(place.passed) AND NOT settled && int8range(at, place.lease_end) THEN
      -- Most often all messages of a lease are completed together, in their order: then their chunks have these very ids.
      position_ := at;
      FOR c IN
        SELECT k.end_position, k.count, k.transaction_ids FROM queue_chunks AS k
        WHERE k.partition_no = part.partition_no AND k.end_position > at AND k.stored_at >= coalesce(place.read_at, '-infinity')
          AND k.stored_at < now_ + interval '1 day'
        ORDER BY k.end_position
      LOOP
        EXIT WHEN c.transaction_ids[position_ - c.end_position + c.count + 1 : least(c.end_position, place.lease_end) - c.end_position + c.count]
          <> ids[position_ - at + 1 : least(c.end_position, place.lease_end) - at];
        position_ := least(c.end_position, place.lease_end);
        EXIT WHEN position_ = place.lease_end;
      END LOOP;
      IF position_ = place.lease_end THEN
        positions := '{}';
        settled := settled + int8multirange(int8range(at, position_));
      END IF;
    END IF;

    IF positions IS NULL THEN
      -- Of one id a partition may have several messages: one whose hash is the same, which the text tells apart, and one that was put
      -- back, for this consumer group or another. The first of them that is leased and not settled is meant, and by a second
      -- acknowledgment the next; if there is none, the newest.
      SELECT array_agg(coalesce(h.positions[m.k], h.newest) ORDER BY m.n) INTO positions
      FROM (SELECT id, n, row_number() OVER (PARTITION BY id ORDER BY n) AS k FROM unnest(ids) WITH ORDINALITY AS w (id, n)) AS m
      CROSS JOIN LATERAL (
        SELECT max(i.position) AS newest, array_agg(i.position ORDER BY i.position) FILTER (
            WHERE i.position >= at AND (place.lease_end IS NULL OR i.position < place.lease_end) AND NOT settled @> i.position
          ) AS positions
        FROM queue_ids AS i
        CROSS JOIN LATERAL (
          SELECT k.transaction_ids[i.position - k.end_position + k.count + 1] AS id, k.only_group FROM queue_chunks AS k
          WHERE k.partition_no = part.partition_no AND k.end_position > i.position ORDER BY k.end_position LIMIT 1
        ) AS k
        WHERE i.partition_no = part.partition_no AND i.hash = hashtextextended(m.id, part.partition_no) AND i.position >= place.floor
          AND k.id = m.id AND coalesce(k.only_group, part.group_no) = part.group_no
      ) AS h;
      mine := CASE
        WHEN part.lease_id IS NULL OR part.lease_id = place.lease_id AND place.lease_until > now_ THEN 'live'
        WHEN part.lease_id = place.ended_lease THEN 'ended'
        ELSE 'lost' END;
      SELECT array_agg(
          CASE
            WHEN m.position IS NULL OR place.removed @> m.position THEN 'not_found'
            WHEN (m.position < at OR settled @> m.position) AND (coalesce(m.status, 'completed') = 'completed' OR mine <> 'lost') THEN 'ok'
            WHEN mine = 'ended' AND m.status IN ('failed', 'retry') THEN 'ok'
            WHEN mine <> 'live' OR part.lease_id IS NOT NULL AND m.position >= place.lease_end THEN 'lease'
            ELSE coalesce(m.status, 'completed')
          END ORDER BY m.n)
        INTO outcomes
      FROM unnest(positions, statuses[begins:part.until]) WITH ORDINALITY AS m (position, status, n);
      SELECT settled + coalesce(range_agg(int8range(m.position, m.position + 1)) FILTER (WHERE m.outcome IN ('completed', 'dlq')), '{}'),
        coalesce(range_agg(int8range(m.position, m.position + 1)) FILTER (WHERE m.outcome = 'failed'), '{}'),
        coalesce(range_agg(int8range(m.position, m.position + 1)) FILTER (WHERE m.outcome = 'dlq'), '{}'),
        coalesce(bool_or(m.outcome IN ('failed', 'retry')), false),
        array_agg(m.n::integer ORDER BY m.n) FILTER (WHERE m.outcome IN ('not_found', 'lease')),
        array_agg(m.outcome ORDER BY m.n) FILTER (WHERE m.outcome IN ('not_found', 'lease'))
      INTO settled, failed, given_up, ends_, refused, refusals
      FROM unnest(positions, outcomes) WITH ORDINALITY AS m (position, outcome, n);
      failed := failed - settled;
      given_up := given_up - coalesce(place.settled, '{}');
    END IF;

    position_ := queue_position_after(at, settled + coalesce(place.passed, '{}'));
    attempts_ := CASE WHEN position_ = place.position THEN place.attempts ELSE 0 END;
    retry_at_ := CASE WHEN position_ = place.position THEN place.retry_at END;
    left_ := int8multirange(int8range(position_, greatest(position_, place.lease_end))) - settled - coalesce(place.passed, '{}');
    IF NOT isempty(failed) THEN
      IF attempts_ >= (place.options ->> 'retryLimit')::bigint THEN
        failed := CASE WHEN left_ <@ failed THEN failed ELSE int8multirange(int8range(lower(failed), lower(failed) + 1)) END;
        given_up := given_up + failed;
        settled := settled + failed;
        position_ := queue_position_after(position_, settled + coalesce(place.passed, '{}'));
        attempts_ := 0;
        retry_at_ := NULL;
      ELSE
        attempts_ := attempts_ + 1;
        retry_at_ := now_ + (place.options ->> 'retryDelay')::bigint * interval '1 millisecond';
      END IF;
    END IF;
    released := place.lease_id IS NOT NULL AND place.lease_until > now_ AND (ends_ OR left_ <@ settled);
    IF released OR ends_ THEN
      until := retry_at_;
      more := EXISTS (SELECT FROM queue_chunks AS k WHERE k.partition_no = part.partition_no AND k.end_position > position_
        AND k.stored_at >= coalesce(place.read_at, '-infinity') AND k.stored_at < now_ + interval '1 day');
    END IF;

    newly := queue_count(settled - coalesce(place.settled, '{}'));
    IF NOT isempty(given_up) THEN
      SELECT array_agg(m.n::integer ORDER BY m.n) INTO dead FROM unnest(positions) WITH ORDINALITY AS m (position, n) WHERE given_up @> m.position;
      PERFORM queue_bury(now_, place.queue_no, part.partition_no, part.group_no, array_agg(d.position), array_agg(errors[begins + d.n - 1]),
        coalesce(place.attempts, 0))
      FROM (
        SELECT DISTINCT ON (w.position) w.position, w.n FROM unnest(positions) WITH ORDINALITY AS w (position, n)
        WHERE given_up @> w.position ORDER BY w.position, w.n
      ) AS d;
    END IF;
    IF newly > 0 OR ends_ OR released THEN
      IF (SELECT count(*) FROM unnest(settled)) > 1000 THEN
        -- Many gaps, of messages that expired or were sought over: from here on they count as settled.
        settled := settled + int8multirange(int8range(0, position_));
      END IF;
      INSERT INTO queue_cursors AS k (
        partition_no, group_no, version, position, settled, passed, attempts, lease_id, lease_end, lease_until, leased_by, ended_lease, retry_at, read_at,
        consumed, consumed_at, changed_at
      ) VALUES (
        part.partition_no, part.group_no, coalesce(place.version, 0) + 1, position_, settled, coalesce(place.passed, '{}'), attempts_,
        CASE WHEN NOT released AND NOT ends_ THEN place.lease_id END, CASE WHEN NOT released AND NOT ends_ THEN place.lease_end END,
        CASE WHEN NOT released AND NOT ends_ THEN place.lease_until END, CASE WHEN NOT released AND NOT ends_ THEN place.leased_by END,
        CASE WHEN ends_ THEN place.lease_id ELSE place.ended_lease END, retry_at_, place.read_at,
        coalesce(place.consumed, 0) + newly, now_, now_
      );
      DELETE FROM queue_cursors AS k WHERE k.ctid = place.tuple;
    END IF;
    RETURN NEXT;
  END LOOP;
END
$$;

-- Extends a lease in all its partitions. Returns how many, and until when at least; no partitions: whether the lease is over or was
-- never there.
CREATE FUNCTION queue_extend(now_ TIMESTAMPTZ, lease UUID, seconds BIGINT, OUT renewed INTEGER, OUT until TIMESTAMPTZ, OUT known BOOLEAN)
LANGUAGE plpgsql AS $$
DECLARE
  part RECORD;
  place RECORD;
BEGIN
  renewed := 0;
  known := false;
  PERFORM pg_advisory_xact_lock(k) FROM (
    SELECT DISTINCT queue_cursor_lock(partition_no, group_no) AS k FROM queue_cursors WHERE lease_id = lease ORDER BY k
  ) AS locks;
  FOR part IN SELECT DISTINCT partition_no, group_no FROM queue_cursors WHERE lease_id = lease LOOP
    SELECT s.*, q.options || w.options AS options INTO place
    FROM (
      SELECT k.ctid AS tuple, k.* FROM queue_cursors AS k
      WHERE k.partition_no = part.partition_no AND k.group_no = part.group_no ORDER BY k.version DESC LIMIT 1
    ) AS s
    JOIN queue_partitions AS w ON w.partition_no = s.partition_no JOIN queues AS q ON q.queue_no = w.queue_no;
    CONTINUE WHEN place.lease_id IS DISTINCT FROM lease;
    known := true;
    CONTINUE WHEN place.lease_until <= now_;
    place.lease_until := greatest(place.lease_until, now_ + coalesce(seconds, nullif((place.options ->> 'leaseTime')::bigint, 0), 60) * interval '1 second');
    INSERT INTO queue_cursors AS k (
      partition_no, group_no, version, position, settled, passed, attempts, lease_id, lease_end, lease_until, leased_by, ended_lease, retry_at, read_at,
      consumed, consumed_at, changed_at
    ) VALUES (
      part.partition_no, part.group_no, place.version + 1, place.position, place.settled, place.passed, place.attempts, place.lease_id, place.lease_end,
      place.lease_until, place.leased_by, place.ended_lease, place.retry_at, place.read_at, place.consumed, place.consumed_at, now_
    );
    DELETE FROM queue_cursors AS k WHERE k.ctid = place.tuple;
    renewed := renewed + 1;
    until := least(until, place.lease_until);
  END LOOP;
END
$$;
