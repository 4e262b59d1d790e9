-- name: sealed_to
SELECT position FROM audit_sealer

-- name: sealed
-- Sealed events by their positions in the chain, which are dense and committed in their order.
SELECT c.position, e.event_id::text AS event_id, e.occurred_at, e.event_type, e.actor_nhi, e.object_nhi,
  e.message_id::text AS message_id, encode(e.replay_key, 'hex') AS replay_key, e.detail::text AS detail, e.event_hash,
  c.entry_hash, e.redacted_at, (e.occurred_at AT TIME ZONE 'UTC')::date AS day
FROM audit_chain AS c JOIN audit_events AS e ON e.event_id = c.event_id AND e.occurred_at = c.occurred_at
WHERE c.position > $1 AND c.position <= $2 ORDER BY c.position

-- name: lost
-- The first sealed entry of some positions whose event is not there.
SELECT c.position FROM audit_chain AS c
WHERE c.position > $1 AND c.position <= $2
  AND NOT EXISTS (SELECT 1 FROM audit_events AS e WHERE e.event_id = c.event_id AND e.occurred_at = c.occurred_at)
ORDER BY c.position LIMIT 1

-- name: checkpoints
SELECT position, entry_hash AS signed_hash, node_key_id::text AS node_key_id, signed_at, signature FROM audit_checkpoints
WHERE position > $1 AND position <= $2 ORDER BY position

-- name: floor
SELECT position, entry_hash FROM audit_floor

-- name: trim_to
-- The last signed entry, among the next $3 behind the floor, that is archived and has no entry of $2 or later before it.
SELECT k.position, k.entry_hash FROM audit_checkpoints AS k, audit_floor AS f
WHERE k.position > f.position AND k.position <= least($1::bigint, f.position + $3::bigint)
  AND k.position < coalesce((SELECT c.position FROM audit_chain AS c WHERE c.occurred_at >= $2 ORDER BY c.position LIMIT 1),
                            k.position + 1)
ORDER BY k.position DESC LIMIT 1

-- name: waiting
-- How many entries could be trimmed, and the time of the oldest.
SELECT count(*) AS entries, min(c.occurred_at) AS oldest FROM audit_chain AS c WHERE c.occurred_at < $1

-- name: entry
SELECT entry_hash FROM audit_chain WHERE position = $1

-- name: trimmed
CREATE TEMPORARY TABLE trimmed (event_id UUID, occurred_at TIMESTAMPTZ) ON COMMIT DROP

-- name: trim_entries
WITH gone AS (DELETE FROM audit_chain WHERE position <= $1 RETURNING event_id, occurred_at)
INSERT INTO trimmed SELECT event_id, occurred_at FROM gone

-- name: trim_partitions
-- The partitions that may have events of trimmed entries.
SELECT p.partition FROM (
  SELECT DISTINCT 'audit_events_' || to_char(occurred_at AT TIME ZONE 'UTC', 'YYYYMMDD') AS partition FROM trimmed
  UNION SELECT 'audit_events_default'
) AS p WHERE to_regclass(p.partition) IS NOT NULL ORDER BY 1

-- name: trim_counts
-- How many events a partition has, and how many of them were trimmed: the others are younger, or no entry explains them.
SELECT count(*) AS events, count(t.event_id) AS trimmed
FROM {partition} AS e LEFT JOIN trimmed AS t ON t.event_id = e.event_id AND t.occurred_at = e.occurred_at

-- name: trim_events
DELETE FROM {partition} AS e USING trimmed AS t WHERE t.event_id = e.event_id AND t.occurred_at = e.occurred_at

-- name: patience
-- Waiting for the locks below holds up the sealer and every act that is recorded, so it waits a second at the most.
SET LOCAL lock_timeout = '1s'

-- name: hold_sealer
-- The sealer thins out only checkpoints behind the floor: while it is held, the checkpoint of the new floor stays, and its next
-- round sees the new floor.
SELECT position FROM audit_sealer FOR UPDATE

-- name: checkpoint
SELECT position FROM audit_checkpoints WHERE position = $1

-- name: trim_lock
LOCK TABLE ONLY audit_events IN ACCESS EXCLUSIVE MODE

-- name: trim_count
SELECT count(*) AS events FROM {partition}

-- name: trim_drop
DROP TABLE {partition}

-- name: raise_floor
UPDATE audit_floor SET position = $1, entry_hash = $2

-- name: record
-- An act of the pipeline, in the transaction of the act. Its hash is made as for every other event.
INSERT INTO audit_events (event_id, occurred_at, event_type, actor_nhi, object_nhi, detail, event_hash)
VALUES ($1::text::uuid, $2, $3, $4, $5, $6::text::jsonb, $7)

-- part: id
-- The id of the agent with the handle $1: events from before it claimed the handle have that.
coalesce((SELECT id::text FROM agents WHERE handle = $1), $1::text)

-- part: names_agent
actor_nhi IN ($1, {id}) OR object_nhi IN ($1, {id})
  OR jsonb_path_exists(detail, '$.* ? (@ == $agent || @ == $id)', jsonb_build_object('agent', $1::text, 'id', {id}))

-- name: about_agent
-- Events, sealed or not, that name the agent by its handle or its id, as actor, as object or in the detail.
SELECT c.position, e.event_id::text AS event_id, e.occurred_at, e.event_type, e.actor_nhi, e.object_nhi,
  e.message_id::text AS message_id, encode(e.replay_key, 'hex') AS replay_key, e.detail::text AS detail, e.event_hash,
  c.entry_hash, e.redacted_at, (e.occurred_at AT TIME ZONE 'UTC')::date AS day
FROM audit_events AS e LEFT JOIN audit_chain AS c ON c.event_id = e.event_id
WHERE {names_agent}

-- name: redact
-- The hash stays, and with it the chain. An erasure is found by its time, which is that of its own event.
WITH emptied AS (
  UPDATE audit_events SET actor_nhi = NULL, object_nhi = NULL, detail = '{}', redacted_at = $2
  WHERE redacted_at IS NULL AND ({names_agent})
  RETURNING 1
)
SELECT count(*) AS redacted FROM emptied

-- name: chain_faults
-- Behind a position and its hash: entries that are missing, and entries that do not follow from the one before them; so
-- many of each kind, and how many there are.
WITH links AS (
  SELECT c.position, c.entry_hash, e.event_hash, lag(c.position, 1, $1::bigint) OVER w AS before,
    lag(c.entry_hash, 1, $2::bytea) OVER w AS before_hash
  FROM audit_chain AS c LEFT JOIN audit_events AS e ON e.event_id = c.event_id AND e.occurred_at = c.occurred_at
  WHERE c.position > $1 WINDOW w AS (ORDER BY c.position)
)
SELECT position, before, kind, of_kind FROM (
  SELECT position, before, kind, count(*) OVER (PARTITION BY kind) AS of_kind, row_number() OVER (PARTITION BY kind ORDER BY position) AS number
  FROM (
    SELECT position, before, CASE WHEN position <> before + 1 THEN 'gap' ELSE 'disorder' END AS kind FROM links
    WHERE position <> before + 1 OR sha256(before_hash || int8send(position) || event_hash) <> entry_hash
  ) AS faults
) AS numbered WHERE number <= $3 ORDER BY position

-- name: erasures
-- When something was erased, by the events that say so, between two times.
SELECT DISTINCT occurred_at FROM audit_events
WHERE occurred_at >= $1 AND occurred_at <= $2 AND event_type = 'erased' AND redacted_at IS NULL

-- name: redacted_sum
-- How many entries behind one, up to another, are redacted, and a sum over all that is left of them.
SELECT count(*) AS row_count, coalesce(sum(('x' || left(encode(sha256(convert_to(
    concat_ws('|', c.position, e.event_id, e.event_type, coalesce(e.message_id::text, ''),
      coalesce(encode(e.replay_key, 'hex'), ''), (extract(epoch FROM e.occurred_at) * 1000000)::bigint,
      (extract(epoch FROM e.redacted_at) * 1000000)::bigint), 'UTF8')), 'hex'), 15))::bit(60)::bigint), 0)::text AS hash_sum
FROM audit_chain AS c JOIN audit_events AS e ON e.event_id = c.event_id AND e.occurred_at = c.occurred_at
WHERE c.position > $1 AND c.position <= $2 AND e.redacted_at IS NOT NULL
