-- queues: as before, with fewer inner statements for a message that is claimed and settled alone.
CREATE OR REPLACE FUNCTION queue_pop(
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
  at BIGINT;            -- the first message that is not settled, passed or expired
  chunks CURSOR FOR     -- a cursor, since a query would read ten rows ahead
      SELECT k.end_position, k.count, k.stored_at, k.created_at, k.first_id, k.only_group, k.key_id, k.producer, k.transaction_ids, k.trace_ids,
        k.ends, k.body
      FROM queue_chunks AS k
      WHERE k.partition_no = p AND k.end_position > at AND k.stored_at >= coalesce(place.read_at, place.floor_at, '-infinity')
        AND k.stored_at < now_ + interval '1 day'
      ORDER BY k.end_position;
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
    FOR c IN chunks LOOP
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
      total := total + length(body);
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
    claimed[r] := claimed[r] + least(got, 1);
    IF got = 0 OR auto_acks[r] THEN
      settled := settled + delivered;
      at := lease_end;
    ELSIF settled @> at OR passed @> at THEN
      at := queue_position_after(at, settled + passed);
    END IF;
    IF pg_column_size(settled) > 16000 THEN
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
CREATE OR REPLACE FUNCTION queue_ack(
  now_ TIMESTAMPTZ, partition_nos BIGINT[], group_nos BIGINT[], lease_ids UUID[], counts INTEGER[],
  transaction_ids TEXT[], statuses TEXT[], errors TEXT[]
) RETURNS TABLE (refused INTEGER[], refusals TEXT[], dead INTEGER[], released BOOLEAN, more BOOLEAN, until TIMESTAMPTZ) LANGUAGE plpgsql AS $$
DECLARE
  part RECORD;
  place RECORD;         -- the partition, its options and the newest version of the cursor
  ids TEXT[];
  begins INTEGER;
  mine TEXT;            -- what the lease of the settlement is: live, ended or lost
  positions BIGINT[];
  outcomes TEXT[];
  at BIGINT;
  chunks CURSOR FOR     -- a cursor, since a query would read ten rows ahead
    SELECT k.end_position, k.count, k.transaction_ids FROM queue_chunks AS k
    WHERE k.partition_no = part.partition_no AND k.end_position > at AND k.stored_at >= coalesce(place.read_at, '-infinity')
      AND k.stored_at < now_ + interval '1 day'
    ORDER BY k.end_position;
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
      FOR c IN chunks LOOP
        EXIT WHEN c.transaction_ids[position_ - c.end_position + c.count + 1 : least(c.end_position, place.lease_end) - c.end_position + c.count]
          <> ids[position_ - at + 1 : least(c.end_position, place.lease_end) - at];
        position_ := least(c.end_position, place.lease_end);
        EXIT WHEN position_ = place.lease_end;
      END LOOP;
      IF position_ = place.lease_end THEN
        positions := '{}';
        settled := settled + int8multirange(int8range(at, position_));
        newly := part.count;
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
      newly := NULL;
      position_ := at;
    END IF;

    IF settled @> position_ OR place.passed @> position_ THEN
      position_ := queue_position_after(position_, settled + coalesce(place.passed, '{}'));
    END IF;
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

    newly := coalesce(newly, queue_count(settled - coalesce(place.settled, '{}')));
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
      IF pg_column_size(settled) > 16000 THEN
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
