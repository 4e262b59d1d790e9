-- agents: the keys that agents had before. The rows stay for ever: such a key never becomes an agent's again.
CREATE TABLE agent_former_keys (
  key_id UUID PRIMARY KEY,
  public_key BYTEA NOT NULL UNIQUE CHECK (octet_length(public_key) = 32),
  agent_id UUID NOT NULL REFERENCES agents (id),
  replaced_at TIMESTAMPTZ NOT NULL,
  -- Until then the key still signs requests; equal to replaced_at: not for a moment.
  valid_until TIMESTAMPTZ NOT NULL CHECK (valid_until >= replaced_at)
);
CREATE INDEX idx_agent_former_keys_agent ON agent_former_keys (agent_id, valid_until);

-- Set with the first key bundle, which names the agent by its handle.
ALTER TABLE agents ADD COLUMN handle_fixed BOOLEAN NOT NULL DEFAULT false;
