-- policy: who may send, publish, subscribe and read keys. What no rule allows is denied.
CREATE TABLE policies (
  rule_id UUID PRIMARY KEY,
  priority INTEGER NOT NULL,
  effect TEXT NOT NULL CHECK (effect IN ('allow', 'deny')),
  action TEXT NOT NULL CHECK (action IN ('send', 'channel.publish', 'channel.subscribe', 'keys.read')),
  subject VARCHAR(512) COLLATE "C" NOT NULL,
  object VARCHAR(512) COLLATE "C" NOT NULL,
  expires_at TIMESTAMPTZ,
  rate TEXT,
  created_by VARCHAR(255) COLLATE "C" NOT NULL,
  created_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX idx_policies_created ON policies (created_at, rule_id);

-- One row. Every change of the rules makes the version another one, so that nothing decided before it is believed.
CREATE TABLE policy_version (
  one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one),
  version BIGINT NOT NULL
);
INSERT INTO policy_version (version) VALUES (0);
