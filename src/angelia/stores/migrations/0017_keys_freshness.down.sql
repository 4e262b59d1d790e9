DELETE FROM ratchet_states WHERE agent_a_nhi > agent_b_nhi;
ALTER TABLE ratchet_states DROP CONSTRAINT ratchet_states_two_agents;
ALTER TABLE ratchet_states ADD CONSTRAINT ratchet_states_check CHECK (agent_a_nhi < agent_b_nhi);
