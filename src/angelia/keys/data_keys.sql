-- name: lock
-- Readers pass. Writers go one at a time, so that all rows are always wrapped by one master key.
LOCK TABLE data_keys IN SHARE ROW EXCLUSIVE MODE

-- name: active
SELECT purpose, key_id, wrapped_key, master_key_id, pg_current_xact_id_if_assigned()::text AS xid
FROM data_keys WHERE purpose = $1 AND active

-- name: by_id
SELECT purpose, key_id, wrapped_key, master_key_id FROM data_keys WHERE key_id = $1

-- name: all
SELECT purpose, key_id, wrapped_key, master_key_id FROM data_keys ORDER BY created_at, key_id

-- name: master_keys
SELECT DISTINCT master_key_id FROM data_keys

-- name: retire
UPDATE data_keys SET active = false WHERE purpose = $1 AND active

-- name: add
INSERT INTO data_keys (purpose, key_id, wrapped_key, master_key_id, active, created_at)
VALUES ($1, $2, $3, $4, true, $5) RETURNING pg_current_xact_id()::text

-- name: reserve
UPDATE data_keys SET used = used + $2 WHERE key_id = $1 AND active AND used + $2 <= $3 RETURNING true

-- name: rewrap
UPDATE data_keys d SET wrapped_key = n.wrapped_key, master_key_id = $3
FROM unnest($1::uuid[], $2::bytea[]) AS n (key_id, wrapped_key) WHERE d.key_id = n.key_id

-- name: lock_master_key
-- Servers that share a ledger may share the file of the master key too: one at a time reads, replaces and renames it.
SELECT pg_advisory_xact_lock(hashtextextended('angelia/master key', 0))
