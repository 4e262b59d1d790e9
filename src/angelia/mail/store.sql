-- part: envelope
-- The columns of an envelope but its bytes, for the statements below.
{place}, sender_nhi AS sender, message_id, key_id, sender_key_id AS signer_id, created_at AS sent_at, accepted_at, expires_at,
  state, wire_bytes, dead_at, dead_reason

-- part: place
-- The columns of a message's place in its queue.
recipient_nhi AS recipient, mref, replay_key, priority, seq, queued_at

-- part: deliverable
-- Messages `w` with what decides whether each may be delivered now: the version of the rules, block lists, and their keys.
SELECT w.*, ({policy.version}) AS rules_version, b.blocked, k.revoked FROM w
CROSS JOIN LATERAL ({agents.blocked}) AS b
CROSS JOIN LATERAL ({keys.revoked}) AS k

-- name: admission
-- What must be known of offered envelopes before their signatures are verified: what was sent under their ids, the version of
-- the rules, block lists, and their keys.
SELECT s.replay_key AS first_key, s.answer AS first_answer, ({policy.version}) AS rules_version, b.blocked, k.*, p.*
FROM (
  SELECT *, sender AS signer
  FROM unnest($1::varchar[], $2::uuid[], $3::varchar[], $4::uuid[], $5::timestamptz[], $6::uuid[], $7::boolean[])
    WITH ORDINALITY AS given (sender, message_id, recipient, key_id, made_at, signer_id, pair_known, n)
) AS w
LEFT JOIN sent_ids AS s ON s.sender_nhi = w.sender AND s.message_id = w.message_id
CROSS JOIN LATERAL ({agents.blocked}) AS b
CROSS JOIN LATERAL ({keys.standing}) AS k
CROSS JOIN LATERAL ({keys.signer}) AS p
ORDER BY w.n

-- name: known_ids
SELECT s.* FROM unnest($1::varchar[], $2::uuid[]) AS w (sender, id)
CROSS JOIN LATERAL (
  SELECT sender_nhi, message_id, replay_key, answer FROM sent_ids WHERE sender_nhi = w.sender AND message_id = w.id LIMIT 1
) AS s

-- name: forget_ids
DELETE FROM sent_ids AS s USING unnest($1::varchar[], $2::uuid[]) AS w (sender, message_id)
WHERE s.sender_nhi = w.sender AND s.message_id = w.message_id

-- name: forget_old_ids
-- The rows are chosen apart: a plan that asks a subquery again for each row would take more than the limit.
WITH old AS MATERIALIZED (
  SELECT sender_nhi, message_id FROM sent_ids WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM sent_ids AS s USING old WHERE s.sender_nhi = old.sender_nhi AND s.message_id = old.message_id

-- part: given
-- New envelopes, and whether each finds room in its recipient's queue. Each brings how much may wait before it, in all and of
-- its sender. Dead letters count: otherwise they would be a way to hold more than a queue may. What is held stands in arrays,
-- since a join would compare every envelope with every way.
held AS MATERIALIZED (
  SELECT array_agg(messages ORDER BY way) AS messages, array_agg(bytes ORDER BY way) AS bytes,
    array_agg(of_sender ORDER BY way) AS of_sender, array_agg(bytes_of_sender ORDER BY way) AS bytes_of_sender
  FROM unnest($26::smallint[], $27::varchar[], $28::varchar[]) WITH ORDINALITY AS w (bucket, recipient, sender, way)
  CROSS JOIN LATERAL (
    SELECT count(*) AS messages, coalesce(sum(wire_bytes), 0)::bigint AS bytes,
      count(*) FILTER (WHERE sender_nhi = w.sender) AS of_sender,
      coalesce(sum(wire_bytes) FILTER (WHERE sender_nhi = w.sender), 0)::bigint AS bytes_of_sender
    FROM envelopes AS e WHERE e.bucket = w.bucket AND e.recipient_nhi = w.recipient
  ) AS h
), given AS MATERIALIZED (
  SELECT w.*, messages[way] > most_messages OR bytes[way] > most_bytes OR of_sender[way] > most_of_sender
    OR bytes_of_sender[way] > most_bytes_of_sender AS crowded
  FROM held, unnest($1::int[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::smallint[], $7::varchar[],
      $8::bytea[], $9::varchar[], $10::uuid[], $11::bytea[], $12::uuid[], $13::uuid[], $14::smallint[], $15::uuid[], $16::uuid[],
      $17::timestamptz[], $18::timestamptz[], $19::timestamptz[], $20::bytea[], $21::jsonb[], $22::uuid[], $23::jsonb[],
      $24::bytea[], $25::boolean[])
    WITH ORDINALITY AS w (way, most_messages, most_bytes, most_of_sender, most_bytes_of_sender, bucket, recipient, mref, sender,
      message_id, replay_key, key_id, signer_id, priority, channel_id, correlation_id, created_at, accepted_at, expires_at, wire,
      answer, event_id, detail, event_hash, one_time, n)
)

-- part: stored
-- The envelopes whose ids were free, with their receipts and audit events. Returns their places; and for those that found no
-- room, what the queue held.
new AS MATERIALIZED (
  -- IS TRUE makes this a look-up in a hash table; without it, it would be a join.
  SELECT * FROM given WHERE ((sender, message_id) IN (SELECT sender_nhi, message_id FROM ids)) IS TRUE ORDER BY n
), placed AS (
  INSERT INTO envelopes (bucket, recipient_nhi, mref, sender_nhi, message_id, replay_key, key_id, sender_key_id, priority,
    channel_id, correlation_id, created_at, accepted_at, queued_at, expires_at, wire, wire_bytes)
  SELECT bucket, recipient, mref, sender, message_id, replay_key, key_id, signer_id, priority, channel_id, correlation_id,
    created_at, accepted_at, accepted_at, expires_at, wire, octet_length(wire) FROM new
  RETURNING mref, seq
), receipts AS (
  INSERT INTO delivery_receipts (receipt_id, message_id, replay_key, sender_nhi, recipient_nhi, channel_id, priority,
    wire_bytes, status, sent_at, accepted_at, expires_at, bucket)
  SELECT gen_random_uuid(), message_id, replay_key, sender, recipient, channel_id, priority, octet_length(wire), 'pending',
    created_at, accepted_at, expires_at, bucket FROM new
), events AS (
  SELECT event_id, accepted_at, 'message_sent', sender, recipient, message_id, replay_key, detail, event_hash FROM new
), recorded AS ({audit.record})
SELECT mref, seq, NULL::bigint AS messages, NULL::bigint AS bytes, NULL::bigint AS of_sender, NULL::bigint AS bytes_of_sender
FROM placed
UNION ALL
SELECT mref, NULL, messages[way], bytes[way], of_sender[way], bytes_of_sender[way] FROM given, held WHERE crowded

-- name: add
-- Stores envelopes that find room and have a free id. Another process may be storing the same message: then this waits for
-- that transaction, and does not get the id.
WITH {given}, ids AS (
  INSERT INTO sent_ids (sender_nhi, message_id, replay_key, answer, expires_at)
  SELECT sender, message_id, replay_key, answer, expires_at + $29::interval FROM given
  WHERE NOT crowded ORDER BY sender, message_id
  ON CONFLICT (sender_nhi, message_id) DO NOTHING
  RETURNING sender_nhi, message_id
), {stored}

-- name: add_one_time
-- The same, where some are sealed to one-time keys: those must get theirs too.
WITH {given}, wanted AS MATERIALIZED (
  -- Not for an id that is taken: its key would be spent for nothing. That is left to a sender that sends two envelopes under
  -- one id in the same moment, each to a one-time key of its own.
  SELECT recipient, key_id, sender, accepted_at AS at, $30::timestamptz AS issued_since FROM given AS g
  CROSS JOIN LATERAL (
    SELECT (SELECT true FROM sent_ids AS s WHERE s.sender_nhi = g.sender AND s.message_id = g.message_id) AS taken
  ) AS known
  WHERE one_time AND NOT crowded AND taken IS NULL
), spent AS ({keys.spend_one_time}), ids AS (
  INSERT INTO sent_ids (sender_nhi, message_id, replay_key, answer, expires_at)
  SELECT sender, message_id, replay_key, answer, expires_at + $29::interval FROM given
  WHERE NOT crowded AND (NOT one_time OR (recipient, key_id) IN (SELECT agent_nhi, key_id FROM spent))
  ORDER BY sender, message_id
  ON CONFLICT (sender_nhi, message_id) DO NOTHING
  RETURNING sender_nhi, message_id
), {stored}

-- name: claimable
-- The LIMIT in look-ups of single messages, here and below, keeps the planner from reading a whole index once for all of them,
-- which is good only while the table is small.
-- Those of these messages that are in this queue and have not expired, with the bytes of those in $4. `passes` says whether
-- the queue has anything before the place $6 that is neither among these nor known to be leased ($7). It asks in the order of
-- the queue, so that the front of the queue's own index is read, whatever share of the table the queue is.
WITH w AS (
  SELECT e.* FROM unnest($3::bytea[]) AS asked (message)
  CROSS JOIN LATERAL (
    SELECT {envelope}, CASE WHEN mref = ANY ($4::bytea[]) THEN wire END AS wire FROM envelopes
    WHERE mref = message LIMIT 1
  ) AS e
  WHERE e.recipient = $2 AND e.state = 'queued' AND e.expires_at > $5
)
SELECT d.*, coalesce((
    SELECT true FROM envelopes AS o
    WHERE o.bucket = $1 AND o.recipient_nhi = $2 AND o.state = 'queued' AND ((3 - o.priority)::bigint << 48) + o.seq < $6
      AND o.expires_at > $5 AND o.mref NOT IN (SELECT unnest($3::bytea[] || $7::bytea[]))
    ORDER BY ((3 - o.priority)::bigint << 48) + o.seq LIMIT 1
  ), false) AS passes
FROM ({deliverable}) AS d

-- name: passed
-- The first of those for which `claimable` says `passes`.
SELECT {place} FROM envelopes
WHERE bucket = $1 AND recipient_nhi = $2 AND state = 'queued' AND ((3 - priority)::bigint << 48) + seq < $3
  AND expires_at > $4 AND mref NOT IN (SELECT unnest($5::bytea[]))
ORDER BY ((3 - priority)::bigint << 48) + seq LIMIT $6

-- name: correlated
SELECT {place} FROM envelopes
WHERE bucket = $1 AND recipient_nhi = $2 AND correlation_id = $3 AND state = 'queued' AND expires_at > $4
  AND priority >= $5 AND ($7::smallint IS NULL OR priority < $7 OR (priority = $7 AND seq > $8::bigint))
ORDER BY priority DESC, seq LIMIT $6

-- name: in_channel
SELECT {place} FROM envelopes
WHERE bucket = $1 AND recipient_nhi = $2 AND channel_id = $3 AND state = 'queued' AND expires_at > $4
  AND priority >= $5 AND ($7::smallint IS NULL OR priority < $7 OR (priority = $7 AND seq > $8::bigint))
ORDER BY priority DESC, seq LIMIT $6

-- name: one
WITH w AS (SELECT {envelope}, wire FROM envelopes WHERE bucket = $1 AND replay_key = $2)
{deliverable}

-- name: lock
-- Every transaction locks in this order, so that two that end the same messages do not wait for each other.
SELECT {envelope}, NULL AS wire
FROM unnest($1::smallint[], $2::varchar[], $3::bytea[]) AS w (of_bucket, of_recipient, of_message)
JOIN envelopes AS e ON e.bucket = of_bucket AND e.replay_key = of_message AND e.recipient_nhi = of_recipient
ORDER BY e.bucket, e.replay_key FOR UPDATE OF e

-- name: acknowledged
-- For each acknowledgment: the envelope, and the pair that signed its receipt, where it has one.
SELECT e.*, p.*
FROM unnest($1::varchar[], $2::bytea[], $3::uuid[], $4::boolean[])
  WITH ORDINALITY AS w (signer, of_message, signer_id, pair_known, n)
LEFT JOIN LATERAL (
  SELECT {envelope}, NULL::bytea AS wire FROM envelopes
  WHERE mref = w.of_message LIMIT 1
) AS e ON e.recipient = w.signer
CROSS JOIN LATERAL ({keys.signer}) AS p
ORDER BY w.n

-- name: settle
-- Ends messages that are still in their queues: the envelopes go, their receipts say so, and the audit has two events each.
-- Returns the messages that it ended, and what status their receipts have now.
-- Every transaction locks in this order, so that two that end the same messages do not wait for each other.
WITH given AS MATERIALIZED (
  SELECT * FROM unnest($1::smallint[], $2::bytea[], $3::bytea[], $4::uuid[], $5::varchar[], $6::varchar[], $7::timestamptz[],
      $8::text[], $9::text[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[], $13::integer[], $14::timestamptz[],
      $15::text[], $16::bytea[], $17::uuid[], $18::bytea[], $19::uuid[], $20::text[], $21::bytea[])
    WITH ORDINALITY AS w (bucket, mref, replay_key, message_id, sender, recipient, sent_at, status, attested_by, delivered_at,
      acknowledged_at, read_at, attempts, last_attempt_at, reason, receipt_wire, received_id, received_hash, ended_id, ended_type,
      ended_hash, n)
), locked AS (
  -- A message that was sealed again under its id has the mref of the first one, and is another message.
  SELECT e.mref, e.replay_key FROM (SELECT mref, replay_key FROM given ORDER BY bucket, replay_key) AS g
  CROSS JOIN LATERAL (
    SELECT mref, replay_key, state FROM envelopes AS e WHERE e.mref = g.mref LIMIT 1 FOR UPDATE
  ) AS e
  WHERE e.state = 'queued' AND e.replay_key = g.replay_key
), gone AS (
  DELETE FROM envelopes
  WHERE mref = ANY (ARRAY(SELECT mref FROM locked)) AND ((mref, replay_key) IN (SELECT mref, replay_key FROM locked)) IS TRUE
  RETURNING replay_key
), ended AS MATERIALIZED (
  SELECT * FROM given WHERE (replay_key IN (SELECT replay_key FROM gone)) IS TRUE
), moved AS (
  UPDATE delivery_receipts AS r SET {receipt_step} FROM ended AS w
  WHERE r.replay_key = ANY (ARRAY(SELECT replay_key FROM ended)) AND r.replay_key = w.replay_key AND r.sent_at = w.sent_at
    AND r.sender_nhi = w.sender AND r.recipient_nhi = w.recipient
  RETURNING r.replay_key, r.status
), events AS (
  SELECT received_id, acknowledged_at, 'message_received', recipient, sender, message_id, replay_key, '{}'::jsonb, received_hash
  FROM ended
  UNION ALL
  SELECT ended_id, acknowledged_at, ended_type, recipient, sender, message_id, replay_key, '{}'::jsonb, ended_hash FROM ended
), recorded AS ({audit.record})
SELECT replay_key, NULL AS status FROM gone
UNION ALL
SELECT replay_key, status FROM moved

-- name: remove
DELETE FROM envelopes AS e USING unnest($1::smallint[], $2::bytea[]) AS w (bucket, mref)
WHERE e.bucket = w.bucket AND e.mref = w.mref

-- name: bury
UPDATE envelopes AS e SET state = 'dead', dead_at = $4, dead_reason = w.reason
FROM unnest($1::smallint[], $2::bytea[], $3::text[]) AS w (bucket, mref, reason)
WHERE e.bucket = w.bucket AND e.mref = w.mref AND e.state = 'queued'

-- name: requeue
-- A dead letter goes back to the end of its queue.
UPDATE envelopes SET state = 'queued', dead_at = NULL, dead_reason = NULL, queued_at = $3, seq = nextval('envelope_seq')
WHERE bucket = $1 AND replay_key = $2 AND state = 'dead'
RETURNING {envelope}, NULL AS wire

-- name: dead_of
SELECT {envelope}, NULL AS wire FROM envelopes WHERE recipient_nhi = $1 AND state = 'dead' AND bucket = $5
  AND ($2::timestamptz IS NULL OR (dead_at, mref) < ($2, $3::bytea))
ORDER BY dead_at DESC, mref DESC LIMIT $4

-- name: expired
-- One small batch; another process's tick takes other rows.
SELECT {envelope}, NULL AS wire FROM envelopes WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: sealed_to
-- A queue is bounded, so its own index is enough.
SELECT {envelope}, NULL AS wire FROM envelopes WHERE bucket = $1 AND recipient_nhi = $2 AND key_id = $3 AND state = 'queued'
LIMIT $4 FOR UPDATE SKIP LOCKED

-- name: signed_by
-- By way of the receipts, which know what a sender has in transit: one more index would cost every message.
SELECT e.* FROM delivery_receipts AS r
CROSS JOIN LATERAL (
  SELECT {envelope}, NULL AS wire FROM envelopes
  WHERE bucket = r.bucket AND replay_key = r.replay_key AND sender_key_id = $2 AND accepted_at >= $3 AND state = 'queued'
  LIMIT 1 FOR UPDATE SKIP LOCKED
) AS e
WHERE r.sender_nhi = $1 AND r.sent_at >= $3::timestamptz - interval '300 s'
LIMIT $4

-- name: queued_between
-- The lock keeps an acknowledgment from deleting a row while its place in the index is being made. Rows that another
-- transaction is ending just now are left out: they need no place, or are found in the next round.
SELECT {place} FROM envelopes
WHERE state = 'queued' AND queued_at >= $1 AND queued_at < $2
  AND ($3::timestamptz IS NULL OR (queued_at, mref) > ($3, $4::bytea))
ORDER BY queued_at, mref LIMIT $5 FOR KEY SHARE SKIP LOCKED

-- name: in_bucket
-- In the order in which every transaction locks.
SELECT {place} FROM envelopes
WHERE bucket = $1 AND state = 'queued' AND replay_key > $2
ORDER BY bucket, replay_key LIMIT $3 FOR KEY SHARE

-- name: mark
SELECT value FROM mail_marks WHERE name = $1

-- name: set_mark
INSERT INTO mail_marks (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value
