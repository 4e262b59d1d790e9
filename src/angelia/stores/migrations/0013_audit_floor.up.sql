-- audit: where the chain of the ledger begins. Entries up to here left for the archive; a checkpoint vouches for the last.
CREATE TABLE audit_floor (
  one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one),
  position BIGINT NOT NULL,
  entry_hash BYTEA NOT NULL CHECK (octet_length(entry_hash) = 32)
);
INSERT INTO audit_floor (position, entry_hash) VALUES (0, decode(repeat('00', 32), 'hex'));
