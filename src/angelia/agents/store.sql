-- name: register
-- A key that is known stays as it is; two registrations of one key, in this batch or beside it, make one agent.
INSERT INTO agents (id, handle, public_key, key_id, name, email, aicq_signatures, registered_at)
SELECT id, id::text, public_key, key_id, name, email, true, registered_at
FROM unnest($1::uuid[], $2::bytea[], $3::uuid[], $4::text[], $5::text[], $6::timestamptz[])
  AS given (id, public_key, key_id, name, email, registered_at)
ON CONFLICT (public_key) DO NOTHING
RETURNING public_key

-- name: ids_of_keys
SELECT id, public_key FROM agents WHERE public_key = ANY ($1::bytea[])

-- name: by_id
SELECT id, handle, public_key, key_id, name, email, aicq_signatures, registered_at
FROM agents WHERE id = $1

-- name: lock
SELECT id, handle, public_key, key_id, name, email, aicq_signatures, registered_at
FROM agents WHERE id = $1 FOR UPDATE

-- name: handles
SELECT id, handle FROM agents WHERE id = ANY ($1::uuid[])

-- name: by_key_id
SELECT id, handle, public_key, key_id, name, email, aicq_signatures, registered_at
FROM agents WHERE key_id = $1

-- name: by_handle
SELECT id, handle, public_key, key_id, name, email, aicq_signatures, registered_at
FROM agents WHERE handle = $1

-- name: claim_handle
-- Only the default handle, the id itself, can be replaced.
UPDATE agents SET handle = $2 WHERE id = $1 AND handle = id::text
RETURNING id, handle, public_key, key_id, name, email, aicq_signatures, registered_at

-- name: update
UPDATE agents SET name = coalesce($2, name), email = coalesce($3, email), aicq_signatures = coalesce($4, aicq_signatures)
WHERE id = $1
RETURNING id, handle, public_key, key_id, name, email, aicq_signatures, registered_at

-- name: list
SELECT id, handle, public_key, key_id, name, email, aicq_signatures, registered_at
FROM agents
WHERE ($1::timestamptz IS NULL OR registered_at >= $1)
  AND ($2::timestamptz IS NULL OR registered_at < $2)
  AND ($3::timestamptz IS NULL OR (registered_at, id) > ($3, $4::uuid))
ORDER BY registered_at, id LIMIT $5

-- name: count
SELECT count(*) FROM agents
WHERE ($1::timestamptz IS NULL OR registered_at >= $1) AND ($2::timestamptz IS NULL OR registered_at < $2)
