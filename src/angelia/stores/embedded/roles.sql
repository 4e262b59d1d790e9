-- Splits the one superuser of a new cluster, or of one that an earlier release made, into two roles: `angelia`, which owns
-- the database and can do nothing outside it, and a superuser that cannot log in. All in one transaction.

-- name: is_superuser
SELECT rolsuper FROM pg_roles WHERE rolname = current_user

-- name: rename_superuser
-- The role that made the cluster is superuser for ever, and no session may rename its own role: so a temporary role does.
CREATE ROLE angelia_renaming SUPERUSER;
SET LOCAL SESSION AUTHORIZATION angelia_renaming;
ALTER ROLE angelia RENAME TO angelia_superuser;
RESET SESSION AUTHORIZATION;
DROP ROLE angelia_renaming

-- name: make_owner
-- REASSIGN OWNED refuses a role that owns system objects, so our objects change their owner one by one.
DO $$
DECLARE
  verifier text := (SELECT rolpassword FROM pg_authid WHERE rolname = 'angelia_superuser');
  handover text;
BEGIN
  EXECUTE format('CREATE ROLE angelia LOGIN PASSWORD %L', verifier);
  FOR handover IN
    WITH ours AS (
      SELECT oid FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> 'information_schema'
    ), part AS (
      -- Sequences follow their columns; objects of an extension stay with it.
      SELECT classid, objid FROM pg_depend WHERE deptype = 'e' OR (deptype IN ('a', 'i') AND refobjsubid > 0)
    )
    -- `public` belongs to the owner of the database.
    SELECT format('ALTER SCHEMA %I OWNER TO angelia', nspname) FROM pg_namespace
    WHERE oid IN (SELECT oid FROM ours) AND nspowner = 'angelia_superuser'::regrole
      AND ('pg_namespace'::regclass, oid) NOT IN (SELECT classid, objid FROM part)
    UNION ALL
    SELECT format('ALTER TABLE %s OWNER TO angelia', oid::regclass) FROM pg_class
    WHERE relnamespace IN (SELECT oid FROM ours) AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
      AND ('pg_class'::regclass, oid) NOT IN (SELECT classid, objid FROM part)
    UNION ALL
    SELECT format('ALTER ROUTINE %s OWNER TO angelia', oid::regprocedure) FROM pg_proc
    WHERE pronamespace IN (SELECT oid FROM ours) AND ('pg_proc'::regclass, oid) NOT IN (SELECT classid, objid FROM part)
    UNION ALL
    SELECT format('ALTER TYPE %s OWNER TO angelia', t.oid::regtype)
    FROM pg_type AS t LEFT JOIN pg_class AS c ON c.oid = t.typrelid
    WHERE t.typnamespace IN (SELECT oid FROM ours) AND (t.typtype IN ('d', 'e', 'r') OR c.relkind = 'c')
      AND ('pg_type'::regclass, t.oid) NOT IN (SELECT classid, objid FROM part)
  LOOP
    EXECUTE handover;
  END LOOP;
  ALTER DATABASE angelia OWNER TO angelia;
  REVOKE ALL ON DATABASE angelia, postgres, template1 FROM PUBLIC;
  ALTER ROLE angelia_superuser NOLOGIN PASSWORD NULL;
END $$
