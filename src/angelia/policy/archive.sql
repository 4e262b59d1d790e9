-- name: policies_about_agent
-- Rules that name the agent itself, and those that it created; not rules whose pattern matches it.
SELECT rule_id::text AS rule_id, priority, effect, action, subject, object, expires_at, rate, created_by, created_at
FROM policies WHERE subject = $1 OR object = $1 OR created_by = $1 ORDER BY created_at, rule_id
