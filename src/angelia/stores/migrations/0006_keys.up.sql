-- keys: agents' public keys, their signed bundles, one-time keys and rotation schedules. No private key is ever here.
CREATE TABLE key_records (
  agent_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  key_id UUID NOT NULL,
  key_type TEXT NOT NULL CHECK (key_type IN ('ml_kem_768', 'ed25519', 'ml_dsa_65', 'x25519', 'xwing')),
  usage TEXT NOT NULL CHECK (usage IN ('identity', 'signed', 'last_resort')),
  public_key BYTEA NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('active', 'grace', 'revoked', 'retired')),
  created_at TIMESTAMPTZ NOT NULL,
  expires_at TIMESTAMPTZ,
  rotated_at TIMESTAMPTZ,
  revoked_at TIMESTAMPTZ,
  compromised_since TIMESTAMPTZ,
  -- The pair that a signing key belongs to: envelopes name the pair, not its halves.
  signer_id UUID,
  PRIMARY KEY (agent_nhi, key_id),
  CHECK ((usage = 'identity') = (signer_id IS NOT NULL)),
  CHECK ((status = 'revoked') = (revoked_at IS NOT NULL))
);
CREATE UNIQUE INDEX one_active_key ON key_records (agent_nhi, key_type) WHERE status = 'active';
CREATE INDEX idx_key_records_status ON key_records (agent_nhi, status);
CREATE INDEX idx_key_records_signer ON key_records (agent_nhi, signer_id) WHERE signer_id IS NOT NULL;
CREATE INDEX idx_key_records_grace ON key_records (rotated_at) WHERE status = 'grace';
CREATE INDEX idx_key_records_revoked ON key_records (revoked_at) WHERE revoked_at IS NOT NULL;

CREATE TABLE bundles (
  agent_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  bundle_version BIGINT NOT NULL CHECK (bundle_version > 0),
  bundle_hash BYTEA NOT NULL CHECK (octet_length(bundle_hash) = 32),
  prev_bundle_hash BYTEA NOT NULL CHECK (octet_length(prev_bundle_hash) = 32),
  issued_at TIMESTAMPTZ NOT NULL,
  expires_at TIMESTAMPTZ NOT NULL,
  published_at TIMESTAMPTZ NOT NULL,
  suites SMALLINT NOT NULL CHECK (suites > 0),
  bundle JSONB NOT NULL,
  rotation_statement JSONB,
  PRIMARY KEY (agent_nhi, bundle_version)
);
CREATE INDEX idx_bundles_published ON bundles (published_at);

CREATE TABLE one_time_keys (
  agent_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  key_id UUID NOT NULL,
  key_type TEXT NOT NULL CHECK (key_type IN ('ml_kem_768', 'xwing')),
  public_key BYTEA NOT NULL,
  signer_id UUID NOT NULL,
  signature_ed25519 BYTEA NOT NULL,
  signature_ml_dsa BYTEA NOT NULL,
  created_at TIMESTAMPTZ NOT NULL,
  issued_to VARCHAR(255) COLLATE "C",
  issued_at TIMESTAMPTZ,
  used_at TIMESTAMPTZ,
  PRIMARY KEY (agent_nhi, key_id),
  CHECK ((issued_to IS NULL) = (issued_at IS NULL)),
  CHECK (used_at IS NULL OR issued_at IS NOT NULL)
);
CREATE INDEX idx_one_time_free ON one_time_keys (agent_nhi, created_at) WHERE issued_at IS NULL;
CREATE INDEX idx_one_time_issued ON one_time_keys (agent_nhi, issued_to, issued_at) WHERE issued_at IS NOT NULL;
CREATE INDEX idx_one_time_age ON one_time_keys (created_at);

CREATE TABLE rotation_events (
  event_id UUID PRIMARY KEY,
  agent_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  key_type TEXT NOT NULL,
  old_key_id UUID NOT NULL,
  new_key_id UUID,
  rotated_at TIMESTAMPTZ NOT NULL,
  reason TEXT NOT NULL CHECK (reason IN ('scheduled', 'on_demand', 'emergency', 'revoked'))
);
CREATE INDEX idx_rotation_events ON rotation_events (agent_nhi, rotated_at, event_id);

-- Rotation schedules: one for each pair of agents that wants one, under the agent that comes first.
CREATE TABLE ratchet_states (
  bucket SMALLINT NOT NULL,
  session_id UUID NOT NULL,
  agent_a_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  agent_b_nhi VARCHAR(255) COLLATE "C" NOT NULL,
  current_key_id UUID NOT NULL,
  current_key_version INTEGER NOT NULL DEFAULT 1 CHECK (current_key_version > 0),
  rotation_policy TEXT NOT NULL CHECK (rotation_policy IN ('hourly', 'daily', 'weekly', 'on_demand')),
  rotation_interval_secs INTEGER,
  last_rotated_at TIMESTAMPTZ NOT NULL,
  next_rotation_at TIMESTAMPTZ,
  -- Since when a rotation has been announced and not yet reported.
  due_since TIMESTAMPTZ,
  last_used_at TIMESTAMPTZ NOT NULL,
  grace_period_keys BYTEA,
  state_ciphertext BYTEA,
  created_at TIMESTAMPTZ NOT NULL,
  updated_at TIMESTAMPTZ NOT NULL,
  PRIMARY KEY (bucket, session_id),
  UNIQUE (bucket, agent_a_nhi, agent_b_nhi),
  CHECK (agent_a_nhi < agent_b_nhi),
  CHECK (bucket = get_byte(sha256(convert_to(agent_a_nhi, 'UTF8')), 0)),
  CHECK ((rotation_policy = 'on_demand') = (next_rotation_at IS NULL))
) PARTITION BY RANGE (bucket);
CREATE TABLE ratchet_states_0 PARTITION OF ratchet_states FOR VALUES FROM (0) TO (64);
CREATE TABLE ratchet_states_1 PARTITION OF ratchet_states FOR VALUES FROM (64) TO (128);
CREATE TABLE ratchet_states_2 PARTITION OF ratchet_states FOR VALUES FROM (128) TO (192);
CREATE TABLE ratchet_states_3 PARTITION OF ratchet_states FOR VALUES FROM (192) TO (256);
CREATE INDEX idx_ratchet_next_rotation ON ratchet_states (next_rotation_at) WHERE next_rotation_at IS NOT NULL;
CREATE INDEX idx_ratchet_second_agent ON ratchet_states (agent_b_nhi, agent_a_nhi);
