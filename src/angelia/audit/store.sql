-- part: event_columns
-- Of `audit_events AS e`, as the members of StoredEvent are named; the last three tell which transaction wrote the row.
e.event_id, e.occurred_at, e.event_type, e.actor_nhi AS actor, e.object_nhi AS object, e.message_id,
  encode(e.replay_key, 'hex') AS replay_key, e.detail, encode(e.event_hash, 'hex') AS event_hash, e.redacted_at,
  e.xid::text AS xid, e.xmin::text AS written, pg_snapshot_xmax(pg_current_snapshot())::text AS next_xid

-- part: checkpoint_columns
position, encode(entry_hash, 'hex') AS entry_hash, node_key_id, signed_at, encode(signature, 'hex') AS signature

-- name: record
WITH events AS (
  SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::varchar[], $5::varchar[], $6::uuid[], $7::bytea[],
                       $8::jsonb[], $9::bytea[])
)
{record}

-- name: sealer
-- The row lock keeps two sealers apart even if one runs without the tick's advisory lock.
SELECT next_xid::text AS next_xid, position, entry_hash FROM audit_sealer FOR UPDATE

-- name: horizon
-- All transactions below `ended_below` have ended: no event with a smaller xid can appear. `next_xid` has not begun.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS ended_below, pg_snapshot_xmax(pg_current_snapshot())::text AS next_xid

-- name: sealable
-- A row whose id is in the chain already was copied or moved by hand; it is skipped, so that it does not stop the sealer.
SELECT e.event_id, e.occurred_at, e.event_hash, e.xid::text AS xid FROM audit_events e
WHERE e.xid >= $1::text::xid8 AND e.xid < $2::text::xid8
  AND NOT EXISTS (SELECT 1 FROM audit_chain c WHERE c.event_id = e.event_id)
ORDER BY e.xid, e.event_id LIMIT $3

-- name: append_chain
INSERT INTO audit_chain (position, event_id, occurred_at, entry_hash)
SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::timestamptz[], $4::bytea[])

-- name: advance
UPDATE audit_sealer SET next_xid = $1::text::xid8, position = $2, entry_hash = $3

-- name: add_checkpoint
-- Another node may have signed the same end of the chain. Its checkpoint is not overwritten: verification reads it.
INSERT INTO audit_checkpoints (position, entry_hash, node_key_id, signed_at, signature) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (position) DO NOTHING

-- name: thin_checkpoints
-- A node's newest checkpoint vouches for all before it. The one before it is deleted, if an earlier one of about the same
-- time stays.
DELETE FROM audit_checkpoints AS k
USING (SELECT position, signed_at FROM audit_checkpoints WHERE position < $1 AND node_key_id = $2
       ORDER BY position DESC LIMIT 1) AS b
WHERE k.position = $1 AND k.node_key_id = $2 AND k.position > (SELECT position FROM audit_floor)
  AND k.position - b.position < $3 AND k.signed_at - b.signed_at < $4

-- name: first_broken
-- The first entry behind $1, up to $3, that is missing, has lost its event or does not follow from the one before it.
WITH links AS (
  SELECT c.position, c.entry_hash, e.event_hash, lag(c.position, 1, $1::bigint) OVER w AS before,
    lag(c.entry_hash, 1, $2::bytea) OVER w AS before_hash
  FROM audit_chain AS c LEFT JOIN audit_events AS e ON e.event_id = c.event_id AND e.occurred_at = c.occurred_at
  WHERE c.position > $1 AND c.position <= $3 WINDOW w AS (ORDER BY c.position)
)
SELECT min(position) FROM (
  SELECT position FROM links
  WHERE position <> before + 1 OR event_hash IS NULL OR sha256(before_hash || int8send(position) || event_hash) <> entry_hash
  UNION ALL
  SELECT $3 WHERE NOT EXISTS (SELECT 1 FROM links WHERE position = $3)
) AS broken

-- name: entry_hash
-- The hash of an entry that was moved to the archive is in its checkpoint.
SELECT entry_hash FROM audit_chain WHERE position = $1
UNION ALL
SELECT k.entry_hash FROM audit_checkpoints k, audit_floor f WHERE k.position = $1 AND k.position <= f.position
LIMIT 1

-- name: sealed_to
SELECT position FROM audit_sealer

-- name: floor
SELECT position, entry_hash FROM audit_floor

-- name: chain
SELECT c.position, c.event_id AS chained_id, c.entry_hash,
  {event_columns}
FROM audit_chain c LEFT JOIN audit_events e ON e.event_id = c.event_id AND e.occurred_at = c.occurred_at
WHERE c.position > $1 ORDER BY c.position LIMIT $2

-- name: checkpoints
SELECT {checkpoint_columns} FROM audit_checkpoints
WHERE position > $1 ORDER BY position LIMIT $2

-- name: checkpoint
SELECT {checkpoint_columns} FROM audit_checkpoints WHERE position = $1

-- name: strays
-- Rows that claim a transaction which is sealed already, and that no entry has: only a forger can have inserted them.
SELECT {event_columns}
FROM audit_events e, audit_sealer s
WHERE e.xid < s.next_xid
  AND ($2::timestamptz IS NULL OR e.occurred_at >= $2)
  AND ($3::timestamptz IS NULL OR e.occurred_at < $3)
  AND NOT EXISTS (SELECT 1 FROM audit_chain c WHERE c.event_id = e.event_id AND c.occurred_at = e.occurred_at)
ORDER BY e.xid, e.event_id LIMIT $1

-- name: tail
-- Events that wait for the sealer. A row with the id of a sealed event but another time is not that sealed event.
SELECT {event_columns}
FROM audit_events e, audit_sealer s
WHERE e.xid >= s.next_xid
  AND NOT EXISTS (SELECT 1 FROM audit_chain c WHERE c.event_id = e.event_id AND c.occurred_at = e.occurred_at)
ORDER BY e.xid, e.event_id LIMIT $1

-- name: last_sealed
-- The transaction of the last sealed event, or of one shortly before it if the last was deleted by SQL.
SELECT e.xid::text FROM (SELECT event_id, occurred_at FROM audit_chain ORDER BY position DESC LIMIT 10) AS c
JOIN audit_events e ON e.event_id = c.event_id AND e.occurred_at = c.occurred_at
ORDER BY e.xid DESC LIMIT 1

-- name: progress
-- How many events wait for the sealer, and since when: one long open transaction holds it back. Counted from the last
-- sealed event, since SQL could move the sealer's own position. And the time of the first entry behind $1, the last that the
-- node signed by its own memory, since SQL could write checkpoints.
SELECT w.waiting, w.oldest, s.position AS sealed_to,
  (SELECT c.occurred_at FROM audit_chain c WHERE c.position > $1 ORDER BY c.position LIMIT 1) AS unsigned_since,
  s.next_xid > pg_snapshot_xmax(pg_current_snapshot()) AS ahead
FROM audit_sealer s
CROSS JOIN (
  SELECT count(*) AS waiting, min(e.occurred_at) AS oldest FROM audit_events e
  WHERE e.xid >= $2::text::xid8
    AND NOT EXISTS (SELECT 1 FROM audit_chain c WHERE c.event_id = e.event_id AND c.occurred_at = e.occurred_at)
) AS w

-- name: events
SELECT {event_columns}, c.position
FROM audit_events e LEFT JOIN audit_chain c ON c.event_id = e.event_id AND c.occurred_at = e.occurred_at
WHERE ($1::text IS NULL OR e.event_type = $1)
  AND ($2::varchar IS NULL OR e.actor_nhi = $2)
  AND ($3::uuid IS NULL OR e.message_id = $3)
  AND ($4::timestamptz IS NULL OR e.occurred_at >= $4)
  AND ($5::timestamptz IS NULL OR e.occurred_at < $5)
  AND ($6::timestamptz IS NULL OR (e.occurred_at, e.event_id) < ($6, $7::uuid))
ORDER BY e.occurred_at DESC, e.event_id DESC LIMIT $8

-- name: entries_before
-- Entries are sealed about in the order of their times, so the oldest come first; at most $2 of them are read.
SELECT count(*) FROM (SELECT occurred_at FROM audit_chain ORDER BY position LIMIT $2) AS first WHERE occurred_at < $1
