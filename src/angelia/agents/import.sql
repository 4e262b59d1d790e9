-- What an import may read and write of agents. Rows are given as JSON, keys in hex.

-- part: given
jsonb_to_recordset($1::text::jsonb)
  AS g (id uuid, public_key text, key_id uuid, name text, email text, registered_at timestamptz)

-- name: lock_keys
-- As registration does: until the commit no other transaction gives these keys to an agent, or takes them from one.
SELECT count(pg_advisory_xact_lock(key::bigint)::text) FROM jsonb_array_elements_text($1::text::jsonb) AS w (key)

-- name: standing
-- The agent that has or had the key of a given one, and whether another agent has its id.
SELECT g.id::text AS id, coalesce(
    (SELECT a.id FROM agents AS a WHERE a.public_key = decode(g.public_key, 'hex')),
    (SELECT f.agent_id FROM agent_former_keys AS f WHERE f.public_key = decode(g.public_key, 'hex'))
  )::text AS holder, EXISTS (SELECT FROM agents AS a WHERE a.id = g.id) AS taken
FROM {given}

-- name: register
INSERT INTO agents (id, handle, public_key, key_id, name, email, aicq_signatures, registered_at)
SELECT id, id::text, decode(public_key, 'hex'), key_id, name, email, true, registered_at FROM {given}
