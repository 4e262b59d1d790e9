-- part: run_columns
-- As the members of Run are named in JSON.
run_id, job, state, version, lo AS "from", hi AS "to", cutoff, row_count AS rows, report, started_at, updated_at

-- name: page
-- Newest first. A process that works on a run holds the advisory lock of its app id until it ends.
SELECT {run_columns},
  state NOT IN ('done', 'failed') AND EXISTS (
    SELECT 1 FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database AND d.datname = current_database()
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
      AND (l.classid::bigint << 32) | l.objid::bigint = hashtextextended('angelia/pipeline ' || app_id, 0)
  ) AS at_work
FROM pipeline_runs
WHERE ($1::text IS NULL OR job = $1) AND ($2::text IS NULL OR state = $2)
  AND ($3::timestamptz IS NULL OR (started_at, run_id) < ($3, $4::uuid))
  AND ($6::text IS NULL OR starts_with(run_id::text, $6)) AND (NOT $7::boolean OR state NOT IN ('done', 'failed'))
ORDER BY started_at DESC, run_id DESC LIMIT $5

-- name: latest
-- The last run of each job to begin, and the time when a run of it was done last.
SELECT DISTINCT ON (job) job, state, started_at,
  max(updated_at) FILTER (WHERE state = 'done') OVER (PARTITION BY job) AS done_at
FROM pipeline_runs ORDER BY job, started_at DESC, version DESC

-- name: last_done
-- The last run of each job that was done.
SELECT DISTINCT ON (job) {run_columns},
  false AS at_work
FROM pipeline_runs WHERE state = 'done' ORDER BY job, updated_at DESC, version DESC
