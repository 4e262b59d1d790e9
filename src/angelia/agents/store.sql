-- part: agent_columns
-- As the members of AgentRow are named.
id, handle, public_key, key_id, name, email, aicq_signatures, registered_at, coalesce(updated_at, registered_at) AS updated_at

-- name: lock_keys
-- Taken before a key gets or loses its agent. A statement does not see rows that were committed after it began, so the next
-- statement checks whether the key is a former one; until then no other transaction can change the key.
SELECT pg_advisory_xact_lock(key) FROM unnest($1::bigint[]) AS given (key)

-- name: register
-- A known key stays as it is. Two registrations of one key, in this batch or in a concurrent one, make one agent.
INSERT INTO agents (id, handle, public_key, key_id, name, email, aicq_signatures, registered_at)
SELECT id, id::text, public_key, key_id, name, email, true, registered_at
FROM unnest($1::uuid[], $2::bytea[], $3::uuid[], $4::text[], $5::text[], $6::timestamptz[])
  AS given (id, public_key, key_id, name, email, registered_at)
WHERE NOT EXISTS (SELECT FROM agent_former_keys AS former WHERE former.public_key = given.public_key)
ON CONFLICT (public_key) DO NOTHING
RETURNING public_key

-- name: ids_of_keys
SELECT id, public_key FROM agents WHERE public_key = ANY ($1::bytea[])

-- name: by_id
SELECT {agent_columns}
FROM agents WHERE id = $1

-- name: lock
SELECT {agent_columns}
FROM agents WHERE id = $1 FOR UPDATE

-- name: fix_handle
UPDATE agents SET handle_fixed = true WHERE id = $1

-- name: handles
SELECT id, handle FROM agents WHERE id = ANY ($1::uuid[])

-- name: known_handles
SELECT handle FROM agents WHERE handle = ANY ($1::varchar[])

-- name: by_key_ids
SELECT {agent_columns}
FROM agents WHERE key_id = ANY ($1::uuid[])

-- name: by_former_key_ids
-- Without a period of grace valid_until equals replaced_at: a server whose clock lags behind must not take the key for valid.
SELECT id, handle, agents.public_key, agents.key_id, name, email, aicq_signatures, registered_at,
  coalesce(updated_at, registered_at) AS updated_at, former.key_id AS former_key_id, former.public_key AS former_key
FROM agent_former_keys AS former JOIN agents ON agents.id = former.agent_id
WHERE former.key_id = ANY ($1::uuid[]) AND former.valid_until >= $2 AND former.valid_until > former.replaced_at

-- name: valid_former_keys
SELECT public_key FROM agent_former_keys
WHERE agent_id = $1 AND valid_until >= $2 AND valid_until > replaced_at

-- name: ever_used
SELECT EXISTS (SELECT FROM agents WHERE public_key = $1)
  OR EXISTS (SELECT FROM agent_former_keys WHERE public_key = $1)

-- name: keep_former_key
INSERT INTO agent_former_keys (key_id, public_key, agent_id, replaced_at, valid_until)
VALUES ($1, $2, $3, $4, $5)

-- name: end_former_keys
UPDATE agent_former_keys SET valid_until = replaced_at WHERE agent_id = $1 AND valid_until > replaced_at

-- name: replace_key
UPDATE agents SET public_key = $2, key_id = $3, updated_at = $4 WHERE id = $1
RETURNING {agent_columns}

-- name: by_handle
SELECT {agent_columns}
FROM agents WHERE handle = $1

-- name: claim_handle
-- Only the default handle, the id itself, can be replaced, and only before the first bundle.
UPDATE agents SET handle = $2, updated_at = $3 WHERE id = $1 AND handle = id::text AND NOT handle_fixed
RETURNING {agent_columns}

-- name: update
UPDATE agents SET name = coalesce($2, name), email = coalesce($3, email), aicq_signatures = coalesce($4, aicq_signatures),
  updated_at = CASE
    WHEN (coalesce($2, name), coalesce($3, email), coalesce($4, aicq_signatures)) = (name, email, aicq_signatures) THEN updated_at
    ELSE $5
  END
WHERE id = $1
RETURNING {agent_columns}

-- name: list
SELECT {agent_columns}
FROM agents
WHERE ($1::timestamptz IS NULL OR registered_at >= $1)
  AND ($2::timestamptz IS NULL OR registered_at < $2)
  AND ($3::timestamptz IS NULL OR (registered_at, id) > ($3, $4::uuid))
ORDER BY registered_at, id LIMIT $5

-- name: named
-- Agents whose name is $1, and then those whose name begins with it: $2 is the pattern. $3 and $4 are the agent to go on after.
SELECT {agent_columns}
FROM agents
WHERE name <> '' AND name LIKE $2
  AND ($5::timestamptz IS NULL OR registered_at >= $5)
  AND ($6::timestamptz IS NULL OR registered_at < $6)
  AND ($3::timestamptz IS NULL OR (name <> $1, registered_at, id) > ((SELECT name <> $1 FROM agents WHERE id = $4), $3, $4::uuid))
ORDER BY name <> $1, registered_at, id LIMIT $7

-- name: count_named
SELECT count(*) FROM agents
WHERE name <> '' AND name LIKE $1
  AND ($2::timestamptz IS NULL OR registered_at >= $2) AND ($3::timestamptz IS NULL OR registered_at < $3)

-- name: block
INSERT INTO blocks (agent_id, blocked_id, blocked_at) VALUES ($1, $2, $3)
ON CONFLICT (agent_id, blocked_id) DO NOTHING
RETURNING blocked_id

-- name: unblock
DELETE FROM blocks WHERE agent_id = $1 AND blocked_id = $2 RETURNING blocked_id

-- name: count_blocks
SELECT count(*) FROM blocks WHERE agent_id = $1

-- name: blocks
SELECT blocked_id, handle, blocked_at
FROM blocks JOIN agents ON agents.id = blocks.blocked_id
WHERE agent_id = $1 AND ($2::timestamptz IS NULL OR (blocked_at, blocked_id) > ($2, $3::uuid))
ORDER BY blocked_at, blocked_id LIMIT $4

-- name: blocked
-- Of pairs of handles, those whose second has blocked the first.
SELECT sender, recipient FROM unnest($1::text[], $2::text[]) AS w (sender, recipient)
CROSS JOIN LATERAL ({blocked}) AS b WHERE b.blocked

-- name: names
SELECT id, name FROM agents WHERE id = ANY ($1::uuid[])

-- name: count
SELECT count(*) FROM agents
WHERE ($1::timestamptz IS NULL OR registered_at >= $1) AND ($2::timestamptz IS NULL OR registered_at < $2)
