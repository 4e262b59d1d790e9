-- agents: whom an agent does not want to hear from. Mail and direct messages ask the same list.
CREATE TABLE blocks (
  agent_id UUID NOT NULL REFERENCES agents (id),
  blocked_id UUID NOT NULL REFERENCES agents (id),
  blocked_at TIMESTAMPTZ NOT NULL,
  PRIMARY KEY (agent_id, blocked_id),
  CHECK (agent_id <> blocked_id)
);
