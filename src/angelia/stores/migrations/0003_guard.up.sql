-- guard: bearer tokens (only the hash of a secret is kept) and blocked addresses.
CREATE TABLE tokens (
  id UUID PRIMARY KEY,
  secret_hash BYTEA NOT NULL CHECK (octet_length(secret_hash) = 32),
  label TEXT NOT NULL CHECK (length(label) <= 100),
  role TEXT NOT NULL CHECK (role IN ('admin', 'read-write', 'read-only')),
  agent_id UUID REFERENCES agents (id),
  -- The token that the server writes to its own data directory; it does not end open mode.
  first_admin BOOLEAN NOT NULL,
  created_at TIMESTAMPTZ NOT NULL,
  expires_at TIMESTAMPTZ,
  revoked_at TIMESTAMPTZ,
  last_used_at TIMESTAMPTZ
);
CREATE INDEX idx_tokens_created ON tokens (created_at, id);

-- An IPv4 address, or the /64 network of an IPv6 address: whoever has one of its addresses has them all.
CREATE TABLE blocked_addresses (
  address TEXT COLLATE "C" PRIMARY KEY,
  reason TEXT NOT NULL CHECK (length(reason) <= 200),
  blocked_by TEXT NOT NULL,
  blocked_at TIMESTAMPTZ NOT NULL,
  expires_at TIMESTAMPTZ
);
CREATE INDEX idx_blocked_expires ON blocked_addresses (expires_at);
