-- name: make_token
INSERT INTO tokens (id, secret_hash, label, role, agent_id, first_admin, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: token
SELECT id, secret_hash, label, role, agent_id, created_at, expires_at, last_used_at
FROM tokens WHERE id = $1 AND revoked_at IS NULL

-- name: used
UPDATE tokens SET last_used_at = $2 WHERE id = $1

-- name: tokens
SELECT id, secret_hash, label, role, agent_id, created_at, expires_at, last_used_at
FROM tokens
WHERE revoked_at IS NULL AND ($1::timestamptz IS NULL OR (created_at, id) > ($1, $2::uuid))
ORDER BY created_at, id LIMIT $3

-- name: count_tokens
SELECT count(*) FROM tokens WHERE revoked_at IS NULL

-- name: count_made_tokens
-- Tokens that an operator made: one of them ends open mode, also after it has expired.
SELECT count(*) FROM tokens WHERE NOT first_admin AND revoked_at IS NULL

-- name: revoke_token
UPDATE tokens SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL RETURNING label

-- name: block
INSERT INTO blocked_addresses (address, reason, blocked_by, blocked_at, expires_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (address) DO UPDATE
SET reason = excluded.reason, blocked_by = excluded.blocked_by, blocked_at = excluded.blocked_at, expires_at = excluded.expires_at

-- name: unblock
DELETE FROM blocked_addresses WHERE address = $1 RETURNING address

-- name: blocks
SELECT address, reason, blocked_by, blocked_at, expires_at FROM blocked_addresses
WHERE (expires_at IS NULL OR expires_at > $1) AND ($2::text IS NULL OR address > $2)
ORDER BY address LIMIT $3

-- name: count_blocks
SELECT count(*) FROM blocked_addresses WHERE expires_at IS NULL OR expires_at > $1
