-- part: run
run_id::text AS run_id, job, app_id, version, lo, hi, cutoff, state, row_count, id_hash_sum::text AS id_hash_sum,
  started_at

-- name: try_lock
-- Held by the connection, so that it ends with the process, however that ends.
SELECT pg_try_advisory_lock(hashtextextended('angelia/pipeline ' || $1, 0)) AS locked

-- name: open_run
SELECT {run}
FROM pipeline_runs WHERE app_id = $1 AND state NOT IN ('done', 'failed')

-- name: plan
INSERT INTO pipeline_runs (run_id, job, app_id, version, lo, hi, cutoff, state, started_at, updated_at)
SELECT $1::uuid, $2, $3::text, greatest(coalesce(max(version), 0), $8::bigint) + 1, $4::timestamptz, $5::timestamptz, $6::timestamptz,
  'planned', $7::timestamptz, $7::timestamptz
FROM pipeline_runs WHERE app_id = $3
RETURNING {run}

-- name: advance
UPDATE pipeline_runs SET state = $2, row_count = coalesce($3::bigint, row_count),
  id_hash_sum = coalesce($4::text::numeric, id_hash_sum), report = coalesce($5::text::jsonb, report), updated_at = $6
WHERE run_id = $1::uuid
RETURNING {run}

-- name: report
SELECT report::text AS report FROM pipeline_runs WHERE run_id = $1::uuid

-- name: open_ids
SELECT run_id::text AS run_id, job FROM pipeline_runs WHERE state NOT IN ('done', 'failed')
