-- keys: a rotation schedule belongs to the agent that rotates, `agent_a_nhi`; an operator may set it for that agent.
-- Until now a row was for both agents of a pair, under the one that comes first; the other one gets a row of its own.
-- contract: a check goes that the release before meets anyway; it lists a pair's second row beside the first.
ALTER TABLE ratchet_states DROP CONSTRAINT ratchet_states_check;
ALTER TABLE ratchet_states ADD CONSTRAINT ratchet_states_two_agents CHECK (agent_a_nhi <> agent_b_nhi);
-- Grace keys are encrypted for the row that they stand in, so the new rows begin without.
INSERT INTO ratchet_states (bucket, session_id, agent_a_nhi, agent_b_nhi, current_key_id, current_key_version,
  rotation_policy, rotation_interval_secs, last_rotated_at, next_rotation_at, due_since, last_used_at, created_at, updated_at)
SELECT get_byte(sha256(convert_to(agent_b_nhi, 'UTF8')), 0), gen_random_uuid(), agent_b_nhi, agent_a_nhi, current_key_id,
  current_key_version, rotation_policy, rotation_interval_secs, last_rotated_at, next_rotation_at, due_since, last_used_at,
  created_at, updated_at
FROM ratchet_states;
