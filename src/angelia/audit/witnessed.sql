-- name: one_at_a_time
-- One transaction at a time for a node, so that two checkpoints handed in at once are not both the newest.
SELECT pg_advisory_xact_lock(hashtextextended('angelia/witnessed/' || $1::uuid, 0))

-- name: newest
SELECT position, encode(entry_hash, 'hex') AS entry_hash FROM audit_witnessed WHERE node_key_id = $1 ORDER BY position DESC LIMIT 1

-- name: nodes
-- How many nodes have checkpoints: jumps from node to node by the index, however many checkpoints each has.
WITH RECURSIVE nodes AS (
  (SELECT node_key_id FROM audit_witnessed ORDER BY node_key_id LIMIT 1)
  UNION ALL
  SELECT (SELECT w.node_key_id FROM audit_witnessed w WHERE w.node_key_id > n.node_key_id ORDER BY w.node_key_id LIMIT 1)
  FROM nodes n WHERE n.node_key_id IS NOT NULL
)
SELECT count(node_key_id) FROM nodes

-- name: add
INSERT INTO audit_witnessed (node_key_id, position, entry_hash, signed_at, signature, witnessed_at)
VALUES ($1, $2, $3, $4, $5, $6)

-- name: thin
-- As `thin_checkpoints` in store.sql: the newest vouches for all before it, and of those one per minute or per thousand
-- entries stays.
DELETE FROM audit_witnessed AS w
USING (SELECT position, signed_at FROM audit_witnessed WHERE node_key_id = $1 AND position < $2
       ORDER BY position DESC LIMIT 1) AS b
WHERE w.node_key_id = $1 AND w.position = $2 AND w.position - b.position < $3 AND w.signed_at - b.signed_at < $4

-- name: of_node
SELECT position, encode(entry_hash, 'hex') AS entry_hash, node_key_id, signed_at, encode(signature, 'hex') AS signature
FROM audit_witnessed
WHERE node_key_id = $1 AND position > $2 ORDER BY position LIMIT $3
