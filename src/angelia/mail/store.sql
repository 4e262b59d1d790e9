-- part: envelope
-- The columns of an envelope but its bytes, for the statements below.
{place}, sender_nhi AS sender, message_id, key_id, sender_key_id AS signer_id, created_at AS sent_at, accepted_at, expires_at,
  state, wire_bytes, dead_at, dead_reason

-- part: place
-- The columns of a message's place in its queue.
recipient_nhi AS recipient, mref, replay_key, priority, seq, queued_at

-- name: known_ids
SELECT s.sender_nhi, s.message_id, s.replay_key, s.answer FROM unnest($1::varchar[], $2::uuid[]) AS w (sender, message_id)
JOIN sent_ids AS s ON s.sender_nhi = w.sender AND s.message_id = w.message_id

-- name: remember_ids
-- Another process may be storing the same message: then this waits for that transaction, and does not get the id.
INSERT INTO sent_ids (sender_nhi, message_id, replay_key, answer, expires_at)
SELECT * FROM unnest($1::varchar[], $2::uuid[], $3::bytea[], $4::jsonb[], $5::timestamptz[])
ON CONFLICT (sender_nhi, message_id) DO NOTHING
RETURNING sender_nhi, message_id

-- name: forget_ids
DELETE FROM sent_ids AS s USING unnest($1::varchar[], $2::uuid[]) AS w (sender, message_id)
WHERE s.sender_nhi = w.sender AND s.message_id = w.message_id

-- name: forget_old_ids
-- The rows are chosen apart: a plan that asks a subquery again for each row would take more than the limit.
WITH old AS MATERIALIZED (
  SELECT sender_nhi, message_id FROM sent_ids WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM sent_ids AS s USING old WHERE s.sender_nhi = old.sender_nhi AND s.message_id = old.message_id

-- name: waiting
-- How much each recipient has of each of these senders, and of all others together. Dead letters count: otherwise they
-- would be a way to hold more than a queue may.
SELECT w.recipient, q.sender, q.messages, q.bytes FROM unnest($1::smallint[], $2::varchar[]) AS w (bucket, recipient)
CROSS JOIN LATERAL (
  SELECT CASE WHEN e.sender_nhi = ANY ($3::varchar[]) THEN e.sender_nhi END AS sender, count(*) AS messages,
    sum(e.wire_bytes)::bigint AS bytes
  FROM envelopes AS e WHERE e.bucket = w.bucket AND e.recipient_nhi = w.recipient GROUP BY 1
) AS q

-- name: add
INSERT INTO envelopes (bucket, recipient_nhi, mref, sender_nhi, message_id, replay_key, key_id, sender_key_id, priority,
  channel_id, correlation_id, created_at, accepted_at, queued_at, expires_at, wire, wire_bytes)
SELECT bucket, recipient, mref, sender, message_id, replay_key, key_id, sender_key_id, priority, channel_id,
  correlation_id, created_at, accepted_at, accepted_at, expires_at, wire, octet_length(wire)
FROM unnest($1::smallint[], $2::varchar[], $3::bytea[], $4::varchar[], $5::uuid[], $6::bytea[], $7::uuid[], $8::uuid[],
            $9::smallint[], $10::uuid[], $11::uuid[], $12::timestamptz[], $13::timestamptz[], $14::timestamptz[],
            $15::bytea[])
  WITH ORDINALITY AS w (bucket, recipient, mref, sender, message_id, replay_key, key_id, sender_key_id, priority,
                        channel_id, correlation_id, created_at, accepted_at, expires_at, wire, n)
ORDER BY n
RETURNING {place}

-- name: claimable
-- Those of these messages that may still be delivered, with the bytes of those in $4. `passes` says whether the queue has
-- anything before the place $6 that is neither among these nor known to be leased ($7). It asks in the order of the queue,
-- so that the front of the queue's own index is read, whatever share of the table the queue is.
SELECT {envelope}, CASE WHEN mref = ANY ($4::bytea[]) THEN wire END AS wire,
  coalesce((
    SELECT true FROM envelopes AS o
    WHERE o.bucket = $1 AND o.recipient_nhi = $2 AND o.state = 'queued' AND ((3 - o.priority)::bigint << 48) + o.seq < $6
      AND o.expires_at > $5 AND o.mref NOT IN (SELECT unnest($3::bytea[] || $7::bytea[]))
    ORDER BY ((3 - o.priority)::bigint << 48) + o.seq LIMIT 1
  ), false) AS passes
FROM envelopes
WHERE bucket = $1 AND recipient_nhi = $2 AND mref = ANY ($3::bytea[]) AND state = 'queued' AND expires_at > $5

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
SELECT {envelope}, wire FROM envelopes WHERE bucket = $1 AND replay_key = $2

-- name: lock
-- Every transaction locks in this order, so that two that end the same messages do not wait for each other.
SELECT {envelope}, NULL AS wire
FROM unnest($1::smallint[], $2::varchar[], $3::bytea[]) AS w (of_bucket, of_recipient, of_message)
JOIN envelopes AS e ON e.bucket = of_bucket AND e.replay_key = of_message AND e.recipient_nhi = of_recipient
ORDER BY e.bucket, e.replay_key FOR UPDATE OF e

-- name: remove
DELETE FROM envelopes AS e USING unnest($1::smallint[], $2::varchar[], $3::bytea[]) AS w (bucket, recipient, mref)
WHERE e.bucket = w.bucket AND e.recipient_nhi = w.recipient AND e.mref = w.mref

-- name: bury
UPDATE envelopes AS e SET state = 'dead', dead_at = $5, dead_reason = w.reason
FROM unnest($1::smallint[], $2::varchar[], $3::bytea[], $4::text[]) AS w (bucket, recipient, mref, reason)
WHERE e.bucket = w.bucket AND e.recipient_nhi = w.recipient AND e.mref = w.mref AND e.state = 'queued'

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
