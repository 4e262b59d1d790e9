-- name: agent_names
-- Handle and id of the agent that has $1 as one of them. No agent has the id of another one as its handle.
SELECT id::text AS id, handle FROM agents
WHERE handle = $1 OR id = CASE WHEN lower($1::text) ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN $1::text::uuid END

-- name: agents_about_agent
SELECT id::text AS id, handle, public_key, key_id::text AS key_id, name, email, registered_at FROM agents WHERE handle = $1

-- name: former_keys_about_agent
SELECT k.key_id::text AS key_id, k.public_key, k.replaced_at, k.valid_until
FROM agent_former_keys AS k JOIN agents AS a ON a.id = k.agent_id WHERE a.handle = $1 ORDER BY k.replaced_at

-- name: blocks_about_agent
-- Blocks by the agent, and blocks of the agent by others.
SELECT a.handle AS agent, b.handle AS blocked, x.blocked_at
FROM blocks AS x JOIN agents AS a ON a.id = x.agent_id JOIN agents AS b ON b.id = x.blocked_id
WHERE a.handle = $1 OR b.handle = $1 ORDER BY x.blocked_at
