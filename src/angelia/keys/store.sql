-- part: key_columns
-- As the members of KeyRecord are named.
agent_nhi, key_id, key_type, usage, public_key, status, created_at, expires_at, rotated_at, revoked_at, compromised_since,
  signer_id

-- name: newest
SELECT bundle, rotation_statement, bundle_hash,
  bundle_version + (SELECT count(*) FROM key_records AS k WHERE k.agent_nhi = $1 AND k.status = 'revoked') AS stamp
FROM bundles WHERE agent_nhi = $1 ORDER BY bundle_version DESC LIMIT 1

-- name: since
SELECT bundle, rotation_statement FROM bundles
WHERE agent_nhi = $1 AND bundle_version > $2 ORDER BY bundle_version LIMIT $3

-- name: add_bundle
INSERT INTO bundles (agent_nhi, bundle_version, bundle_hash, prev_bundle_hash, issued_at, expires_at, published_at,
  suites, bundle, rotation_statement)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: with_revoked_keys
SELECT w.n::int - 1 AS n FROM unnest($1::varchar[], $2::uuid[], $3::varchar[], $4::uuid[], $5::timestamptz[])
  WITH ORDINALITY AS w (recipient, key_id, sender, signer_id, accepted_at, n)
CROSS JOIN LATERAL ({revoked}) AS k WHERE k.revoked

-- name: signers
SELECT p.* FROM unnest($1::varchar[], $2::uuid[], $3::boolean[]) WITH ORDINALITY AS w (signer, signer_id, pair_known, n)
CROSS JOIN LATERAL ({signer}) AS p
ORDER BY w.n

-- name: pair
SELECT {key_columns} FROM key_records WHERE agent_nhi = $1 AND signer_id = $2

-- name: changed_since
-- Agents whose bundle or key statuses changed, by name; the hot tier's copy of their bundle may be old.
SELECT agent_nhi FROM bundles WHERE published_at >= $1 AND agent_nhi > $2
UNION SELECT agent_nhi FROM key_records WHERE revoked_at >= $1 AND agent_nhi > $2
ORDER BY agent_nhi LIMIT $3

-- name: add_records
INSERT INTO key_records (agent_nhi, key_id, key_type, usage, public_key, status, created_at, expires_at, signer_id)
SELECT $1, key_id, key_type, usage, public_key, 'active', created_at, expires_at, signer_id
FROM unnest($2::uuid[], $3::text[], $4::text[], $5::bytea[], $6::timestamptz[], $7::timestamptz[], $8::uuid[])
  AS given (key_id, key_type, usage, public_key, created_at, expires_at, signer_id)

-- name: records
SELECT {key_columns}
FROM key_records WHERE agent_nhi = $1 AND key_id = ANY ($2::uuid[])

-- name: living_records
SELECT {key_columns}
FROM key_records WHERE agent_nhi = $1 AND status IN ('active', 'grace')

-- name: revoked_signers
SELECT DISTINCT signer_id FROM key_records WHERE agent_nhi = $1 AND status = 'revoked' AND signer_id IS NOT NULL

-- name: to_grace
UPDATE key_records SET status = 'grace', rotated_at = $3 WHERE agent_nhi = $1 AND key_id = ANY ($2::uuid[])

-- name: revoke
UPDATE key_records SET status = 'revoked', revoked_at = $3, compromised_since = $4
WHERE agent_nhi = $1 AND key_id = ANY ($2::uuid[]) AND status <> 'revoked'

-- name: renew
UPDATE key_records SET expires_at = given.expires_at
FROM unnest($2::uuid[], $3::timestamptz[]) AS given (key_id, expires_at)
WHERE agent_nhi = $1 AND key_records.key_id = given.key_id

-- name: end_grace
-- One small batch; another process's tick takes other rows. The condition stands twice, so that its index serves both
-- statements.
WITH ended AS (
  SELECT agent_nhi, key_id FROM key_records
  WHERE status = 'grace' AND rotated_at <= $1 ORDER BY rotated_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE key_records AS k SET status = 'retired' FROM ended
WHERE k.agent_nhi = ended.agent_nhi AND k.key_id = ended.key_id AND k.status = 'grace' AND k.rotated_at <= $1
RETURNING k.agent_nhi, k.key_id, k.key_type

-- name: revoked_since
SELECT {key_columns}
FROM key_records
WHERE revoked_at >= $1
  AND ($2::timestamptz IS NULL OR (revoked_at, agent_nhi, key_id) > ($2, $3::varchar COLLATE "C", $4::uuid))
ORDER BY revoked_at, agent_nhi, key_id LIMIT $5

-- name: add_rotations
INSERT INTO rotation_events (event_id, agent_nhi, key_type, old_key_id, new_key_id, rotated_at, reason)
SELECT event_id, $1, key_type, old_key_id, new_key_id, $2, $3
FROM unnest($4::uuid[], $5::text[], $6::uuid[], $7::uuid[]) AS given (event_id, key_type, old_key_id, new_key_id)

-- name: rotations
SELECT event_id, key_type, old_key_id, new_key_id, rotated_at, reason FROM rotation_events
WHERE agent_nhi = $1 AND ($2::timestamptz IS NULL OR (rotated_at, event_id) < ($2, $3::uuid))
ORDER BY rotated_at DESC, event_id DESC LIMIT $4

-- name: add_one_time
-- A key that was uploaded before stays as it is, issued or not: a repeated upload makes no key available again.
INSERT INTO one_time_keys (agent_nhi, key_id, key_type, public_key, signer_id, signature_ed25519, signature_ml_dsa, created_at)
SELECT $1, key_id, key_type, public_key, $2, signature_ed25519, signature_ml_dsa, created_at
FROM unnest($3::uuid[], $4::text[], $5::bytea[], $6::bytea[], $7::bytea[], $8::timestamptz[])
  AS given (key_id, key_type, public_key, signature_ed25519, signature_ml_dsa, created_at)
ON CONFLICT (agent_nhi, key_id) DO NOTHING
RETURNING key_id

-- name: one_time_among
SELECT key_id FROM one_time_keys WHERE agent_nhi = $1 AND key_id = ANY ($2::uuid[])

-- name: count_one_time
SELECT count(*) FROM one_time_keys WHERE agent_nhi = $1 AND issued_at IS NULL AND created_at > $2

-- name: free_one_time
-- Counts up to $4 only.
SELECT count(*) FROM (
  SELECT FROM one_time_keys WHERE agent_nhi = $1 AND issued_at IS NULL AND created_at > $2 AND signer_id = $3 LIMIT $4
) AS free

-- name: few_one_time
-- A page of agents, by name, and how many unused keys each has, counted up to a number.
SELECT a.agent_nhi, free.keys FROM (
  SELECT agent_nhi FROM bundles WHERE bundle_version = 1 AND agent_nhi > $1 ORDER BY agent_nhi LIMIT $2
) AS a
CROSS JOIN LATERAL (
  SELECT count(*) AS keys FROM (
    SELECT FROM one_time_keys AS o WHERE o.agent_nhi = a.agent_nhi AND o.issued_at IS NULL AND o.created_at > $3 LIMIT $4
  ) AS counted
) AS free
ORDER BY a.agent_nhi

-- name: lock_pair
-- One issue at a time between two agents, so that the hourly limit is exact.
SELECT pg_advisory_xact_lock(hashtextextended($1 || ' ' || $2, 0))

-- name: issued_to_since
SELECT count(*) FROM one_time_keys WHERE agent_nhi = $1 AND issued_to = $2 AND issued_at > $3

-- name: take_one_time
-- Requesters at the same time each get another key, or none.
UPDATE one_time_keys SET issued_to = $2, issued_at = $3
WHERE agent_nhi = $1 AND key_id = (
  SELECT key_id FROM one_time_keys
  WHERE agent_nhi = $1 AND issued_at IS NULL AND created_at > $4 AND signer_id = $5 AND key_type = ANY ($6::text[])
  ORDER BY created_at, key_id LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING key_id, key_type, public_key, signature_ed25519, signature_ml_dsa, created_at

-- name: drop_free_one_time
DELETE FROM one_time_keys WHERE agent_nhi = $1 AND issued_at IS NULL

-- name: drop_all_one_time
DELETE FROM one_time_keys WHERE agent_nhi = $1 AND used_at IS NULL

-- name: drop_old_one_time
-- The age stands twice, so that its index serves both statements.
DELETE FROM one_time_keys WHERE created_at < $1 AND (agent_nhi, key_id) IN (
  SELECT agent_nhi, key_id FROM one_time_keys WHERE created_at < $1 ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
