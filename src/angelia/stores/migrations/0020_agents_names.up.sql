-- agents: found by name, and when they changed last.
ALTER TABLE agents ADD COLUMN updated_at TIMESTAMPTZ;  -- NULL: never since the registration
CREATE INDEX idx_agents_name ON agents (name text_pattern_ops) WHERE name <> '';
