-- name: sessions
-- What the archive keeps of rotation schedules: neither their state nor their keys in grace. A schedule is idle since it was
-- used last or became due, whichever is later.
SELECT session_id::text AS session_id, agent_a_nhi, agent_b_nhi, current_key_id::text AS current_key_id, current_key_version,
  rotation_policy, rotation_interval_secs, last_rotated_at, next_rotation_at, due_since, last_used_at, created_at, updated_at,
  bucket, (last_used_at AT TIME ZONE 'UTC')::date AS day, greatest(last_used_at, due_since) AS idle_since
FROM ratchet_states

-- name: sessions_idle
-- How many have been idle since before $1.
SELECT count(*) AS row_count FROM ratchet_states WHERE greatest(last_used_at, due_since) < $1

-- name: sessions_given
-- Count and sum over the ids to purge, to be compared with what was read back from the archive.
SELECT count(*) AS row_count, coalesce(sum(('x' || left(md5(session_id), 15))::bit(60)::bigint), 0)::text AS id_hash_sum
FROM archived_ids

-- name: sessions_purge_ids
-- Deletes those that are still idle; a schedule that was used meanwhile stays.
WITH gone AS (
  DELETE FROM ratchet_states AS s USING archived_ids AS a
  WHERE s.session_id = a.session_id::uuid AND greatest(s.last_used_at, s.due_since) < $1 RETURNING 1
)
SELECT count(*) AS purged FROM gone

-- name: sessions_kept
-- Those that the ledger still has, since they were used while they were archived. Ids are never reused.
SELECT s.session_id::text AS session_id FROM ratchet_states AS s JOIN archived_ids AS a ON s.session_id = a.session_id::uuid
ORDER BY 1

-- name: sessions_erase
WITH gone AS (DELETE FROM ratchet_states WHERE agent_a_nhi = $1 OR agent_b_nhi = $1 RETURNING 1)
SELECT count(*) AS erased FROM gone

-- name: key_records_about_agent
SELECT agent_nhi, key_id::text AS key_id, key_type, usage, public_key, status, created_at, expires_at, rotated_at, revoked_at,
  compromised_since, signer_id::text AS signer_id
FROM key_records WHERE agent_nhi = $1 ORDER BY created_at, key_id

-- name: bundles_about_agent
SELECT agent_nhi, bundle_version, bundle_hash, prev_bundle_hash, issued_at, expires_at, published_at, suites,
  bundle::text AS bundle, rotation_statement::text AS rotation_statement
FROM bundles WHERE agent_nhi = $1 ORDER BY bundle_version

-- name: one_time_keys_about_agent
-- Its own, and those of other agents that were issued to it.
SELECT agent_nhi, key_id::text AS key_id, key_type, created_at, issued_to, issued_at, used_at
FROM one_time_keys WHERE agent_nhi = $1 OR issued_to = $1 ORDER BY created_at, key_id

-- name: rotation_events_about_agent
SELECT event_id::text AS event_id, agent_nhi, key_type, old_key_id::text AS old_key_id, new_key_id::text AS new_key_id,
  rotated_at, reason
FROM rotation_events WHERE agent_nhi = $1 ORDER BY rotated_at, event_id

-- name: rotations_by_day
-- Keys that were replaced or revoked, by day, reason and type.
SELECT (rotated_at AT TIME ZONE 'UTC')::date AS day, reason, key_type, count(*) AS rotations,
  count(DISTINCT agent_nhi) AS agents
FROM rotation_events GROUP BY 1, 2, 3 ORDER BY 1, 2, 3

-- name: keys_in_grace
-- Keys in grace, and for how long they have been in grace at $1.
SELECT key_type, count(*) AS keys, extract(epoch FROM $1::timestamptz - min(rotated_at))::bigint AS oldest_seconds,
  extract(epoch FROM avg($1::timestamptz - rotated_at))::bigint AS mean_seconds
FROM key_records WHERE status = 'grace' AND rotated_at <= $1::timestamptz GROUP BY 1 ORDER BY 1
