-- name: make_table
CREATE TABLE IF NOT EXISTS schema_migrations (
  version INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  checksum BYTEA NOT NULL,
  applied_at TIMESTAMPTZ NOT NULL,
  fingerprint BYTEA
);

-- name: applied
SELECT version, checksum FROM schema_migrations ORDER BY version

-- name: record
INSERT INTO schema_migrations (version, name, checksum, applied_at) VALUES ($1, $2, $3, $4)

-- name: forget
DELETE FROM schema_migrations WHERE version = $1

-- name: fingerprint
-- Columns and indexes of our tables: what an operator could change by hand. Partitions are left out: they come and go daily.
SELECT sha256(convert_to(coalesce(string_agg(line, E'\n' ORDER BY line COLLATE "C"), ''), 'UTF8'))
FROM (
  SELECT format('%s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull) AS line
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
  WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT format('%s %s', t.relname, i.relname)
  FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
  WHERE t.relnamespace = 'public'::regnamespace AND NOT t.relispartition
) AS lines

-- name: record_fingerprint
UPDATE schema_migrations SET fingerprint = $1 WHERE version = (SELECT max(version) FROM schema_migrations)

-- name: recorded_fingerprint
SELECT fingerprint FROM schema_migrations ORDER BY version DESC LIMIT 1
