-- agents: who exists. One key is one agent; id and handle are for ever.
CREATE TABLE agents (
  id UUID PRIMARY KEY,
  handle VARCHAR(255) COLLATE "C" NOT NULL UNIQUE,
  public_key BYTEA NOT NULL UNIQUE CHECK (octet_length(public_key) = 32),
  key_id UUID NOT NULL UNIQUE,
  name TEXT NOT NULL CHECK (octet_length(name) <= 100),
  email TEXT NOT NULL CHECK (octet_length(email) <= 254),
  aicq_signatures BOOLEAN NOT NULL,
  registered_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX idx_agents_registered ON agents (registered_at, id);
