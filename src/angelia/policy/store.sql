-- part: rule_columns
-- As the members of PolicyRule, in their order.
rule_id, priority, effect, action, subject, object, expires_at, rate, created_by, created_at

-- name: version
{version}

-- name: lock_version
SELECT version FROM policy_version FOR UPDATE

-- name: bump_version
-- The row lock, held until the commit, makes changes of the rules happen one after another.
UPDATE policy_version SET version = version + 1 RETURNING version

-- name: every_rule
SELECT {rule_columns} FROM policies

-- name: page
SELECT {rule_columns} FROM policies
WHERE $1::timestamptz IS NULL OR (created_at, rule_id) > ($1, $2::uuid)
ORDER BY created_at, rule_id LIMIT $3

-- name: count
SELECT count(*) FROM policies

-- name: count_made_by
SELECT count(*) FROM policies WHERE created_by = $1

-- name: add
INSERT INTO policies ({rule_columns})
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: remove
DELETE FROM policies WHERE rule_id = $1
RETURNING {rule_columns}
