-- channels: the roster that a channel's owner signed last. 0 is none: such a channel was made without one.
ALTER TABLE channels ADD COLUMN roster_version BIGINT NOT NULL DEFAULT 0;

-- In a table of its own: a channel's row is read with every message, and a roster may be a megabyte.
CREATE TABLE channel_rosters (
  channel_id UUID PRIMARY KEY,
  version BIGINT NOT NULL CHECK (version > 0),
  roster_hash BYTEA NOT NULL CHECK (octet_length(roster_hash) = 32),
  roster BYTEA NOT NULL,                   -- what was signed, and both signatures
  stored_at TIMESTAMPTZ NOT NULL
);
