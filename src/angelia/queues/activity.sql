-- name: add_minutes
-- Adds to the counts of queues in a minute; `$10` has as many counts of waiting times for each queue.
INSERT INTO queue_minutes AS m (
  minute, queue_no, pushed, pushed_bytes, popped, completed, failed, dead, evicted, waited, waited_ms, waited_most_ms
)
SELECT $1, queue_no, pushed, pushed_bytes, popped, completed, failed, dead, evicted,
  ($10::bigint[])[(n - 1) * cardinality($10) / cardinality($2) + 1 : n * cardinality($10) / cardinality($2)], waited_ms, waited_most_ms
FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $11::bigint[], $12::bigint[])
  WITH ORDINALITY AS w (queue_no, pushed, pushed_bytes, popped, completed, failed, dead, evicted, waited_ms, waited_most_ms, n)
ORDER BY queue_no  -- in one order for all processes, so that two of them do not wait for each other
ON CONFLICT (minute, queue_no) DO UPDATE SET
  pushed = m.pushed + excluded.pushed, pushed_bytes = m.pushed_bytes + excluded.pushed_bytes, popped = m.popped + excluded.popped,
  completed = m.completed + excluded.completed, failed = m.failed + excluded.failed, dead = m.dead + excluded.dead,
  evicted = m.evicted + excluded.evicted, waited_ms = m.waited_ms + excluded.waited_ms,
  waited_most_ms = greatest(m.waited_most_ms, excluded.waited_most_ms),
  waited = (SELECT array_agg(a + b ORDER BY n) FROM unnest(m.waited, excluded.waited) WITH ORDINALITY AS s (a, b, n))

-- name: add_worker
-- Adds a sample of a process to its minute.
INSERT INTO queue_workers AS k (
  minute, server, worker, pid, pushed, popped, completed, failed, dead, samples, cpu_user_ms, cpu_system_ms, memory_bytes, loop_ms, loop_most_ms
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 1, $10, $11, $12, $13, $13)
ON CONFLICT (minute, server, pid) DO UPDATE SET
  pushed = k.pushed + excluded.pushed, popped = k.popped + excluded.popped, completed = k.completed + excluded.completed,
  failed = k.failed + excluded.failed, dead = k.dead + excluded.dead, samples = k.samples + 1,
  cpu_user_ms = k.cpu_user_ms + excluded.cpu_user_ms, cpu_system_ms = k.cpu_system_ms + excluded.cpu_system_ms,
  memory_bytes = excluded.memory_bytes, loop_ms = k.loop_ms + excluded.loop_ms, loop_most_ms = greatest(k.loop_most_ms, excluded.loop_most_ms)

-- name: delete_before
WITH workers AS (DELETE FROM queue_workers WHERE minute < $1)
DELETE FROM queue_minutes WHERE (minute, queue_no) IN (SELECT minute, queue_no FROM queue_minutes WHERE minute < $1 ORDER BY minute LIMIT $2)
