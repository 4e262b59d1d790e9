-- audit: what this node witnesses of others. A node hands its checkpoints over, and cannot take one back or tell another story.
CREATE TABLE audit_witnessed (
  node_key_id UUID NOT NULL,
  position BIGINT NOT NULL CHECK (position > 0),
  entry_hash BYTEA NOT NULL CHECK (octet_length(entry_hash) = 32),
  signed_at TIMESTAMPTZ NOT NULL,
  signature BYTEA NOT NULL CHECK (octet_length(signature) = 64),
  witnessed_at TIMESTAMPTZ NOT NULL,
  PRIMARY KEY (node_key_id, position)
);
