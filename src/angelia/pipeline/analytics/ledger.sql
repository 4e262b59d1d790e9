-- name: ledger_sizes
-- Every table with its indexes and partitions, and how many rows the planner thinks it has (-1: it never looked).
SELECT c.relname::text AS name, sum(greatest(p.reltuples, 0))::bigint AS row_count,
  sum(pg_total_relation_size(p.oid))::bigint AS bytes
FROM pg_class AS c, LATERAL (SELECT relid FROM pg_partition_tree(c.oid) UNION SELECT c.oid) AS t
JOIN pg_class AS p ON p.oid = t.relid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
GROUP BY 1 ORDER BY 1
