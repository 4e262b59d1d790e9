-- data: the keys that encrypt stored fields, wrapped by the master key, which is never here. One active per purpose.
CREATE TABLE data_keys (
  purpose TEXT NOT NULL,
  key_id UUID NOT NULL,
  wrapped_key BYTEA NOT NULL,
  master_key_id TEXT NOT NULL,
  active BOOLEAN NOT NULL,
  created_at TIMESTAMPTZ NOT NULL,
  PRIMARY KEY (key_id)
);
CREATE UNIQUE INDEX one_active_data_key ON data_keys (purpose) WHERE active;
