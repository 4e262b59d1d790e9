-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended('angelia/partitions of ' || $1::text, 0))

-- name: make
-- DDL takes no parameters, so a date and our own names are filled in. Without the lock, a row of that day could enter the
-- default partition between the move and the attachment, and PostgreSQL would refuse to attach.
SET LOCAL lock_timeout = '5s';
LOCK TABLE {table}_default IN ACCESS EXCLUSIVE MODE;
CREATE TABLE {name} (LIKE {table} INCLUDING ALL);
DO $$  -- how exact statistics of a column are is not copied
DECLARE
  like_parent TEXT;
BEGIN
  SELECT string_agg(format('ALTER %I SET STATISTICS %s', attname, attstattarget), ', ') INTO like_parent
  FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped AND attstattarget >= 0;
  IF like_parent IS NOT NULL THEN
    EXECUTE 'ALTER TABLE {name} ' || like_parent;
  END IF;
END
$$;
WITH moved AS (
  DELETE FROM {table}_default WHERE {column} >= '{start}' AND {column} < '{end}' RETURNING *
)
INSERT INTO {name} SELECT * FROM moved;
ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{start}') TO ('{end}');

-- name: partitions
SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
JOIN pg_class p ON p.oid = i.inhparent WHERE p.relname = $1

-- name: in_default
SELECT count(*) FROM {table}_default
