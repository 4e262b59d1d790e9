-- name: tokens_about_agent
-- Tokens that act for the agent, without the hashes of their secrets.
SELECT t.id::text AS id, t.label, t.role, a.handle AS agent, t.created_at, t.expires_at, t.revoked_at, t.last_used_at
FROM tokens AS t JOIN agents AS a ON a.id = t.agent_id WHERE a.handle = $1 ORDER BY t.created_at, t.id
