-- A schedule belongs to the agent that rotates its keys, `agent_a_nhi`; `agent_b_nhi` is the peer that they are for.

-- part: schedule_columns
-- As the members of RotationSchedule are named.
session_id, agent_a_nhi AS agent, agent_b_nhi AS peer, rotation_policy AS policy, current_key_id, current_key_version,
  last_rotated_at, next_rotation_at, due_since, grace_period_keys AS sealed_grace_keys

-- name: of_agent
-- By peer, in the order of the index, so that a page costs the same however many schedules there are.
SELECT {schedule_columns}
FROM ratchet_states WHERE bucket = $1 AND agent_a_nhi = $2 AND agent_b_nhi > $3 ORDER BY agent_b_nhi LIMIT $4

-- name: lock
SELECT {schedule_columns}
FROM ratchet_states WHERE bucket = $1 AND agent_a_nhi = $2 AND agent_b_nhi = $3 FOR UPDATE

-- name: put
-- The same policy again changes nothing; another one starts a new interval, and a rotation that is due stays due.
INSERT INTO ratchet_states (bucket, session_id, agent_a_nhi, agent_b_nhi, current_key_id, rotation_policy,
  rotation_interval_secs, last_rotated_at, next_rotation_at, last_used_at, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $8, $8, $8)
ON CONFLICT (bucket, agent_a_nhi, agent_b_nhi) DO UPDATE SET rotation_policy = excluded.rotation_policy,
  rotation_interval_secs = excluded.rotation_interval_secs,
  next_rotation_at = CASE WHEN ratchet_states.rotation_policy = excluded.rotation_policy
    THEN ratchet_states.next_rotation_at ELSE excluded.next_rotation_at END,
  last_used_at = excluded.last_used_at, updated_at = excluded.updated_at
RETURNING {schedule_columns}

-- name: remove
DELETE FROM ratchet_states WHERE bucket = $1 AND agent_a_nhi = $2 AND agent_b_nhi = $3 RETURNING session_id

-- name: rotated
UPDATE ratchet_states SET current_key_id = $4, current_key_version = $5, last_rotated_at = $6, next_rotation_at = $7,
  due_since = NULL, last_used_at = $6, grace_period_keys = $8, updated_at = $6
WHERE bucket = $1 AND agent_a_nhi = $2 AND agent_b_nhi = $3
RETURNING {schedule_columns}

-- name: announce_due
-- One small batch, each row by one tick only; the next interval starts now, also after missed rotations.
WITH due (in_bucket, id) AS (
  SELECT bucket, session_id FROM ratchet_states
  WHERE next_rotation_at <= $1 ORDER BY next_rotation_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE ratchet_states AS s SET due_since = coalesce(s.due_since, $1),
  next_rotation_at = $1 + make_interval(secs => s.rotation_interval_secs), updated_at = $1
FROM due WHERE s.bucket = due.in_bucket AND s.session_id = due.id AND s.next_rotation_at <= $1
RETURNING {schedule_columns}

-- name: make_all_due
-- After an emergency the earlier keys are dropped, and every schedule of the agent is due at once.
UPDATE ratchet_states SET grace_period_keys = NULL, due_since = coalesce(due_since, $3), updated_at = $3
WHERE bucket = $1 AND agent_a_nhi = $2
