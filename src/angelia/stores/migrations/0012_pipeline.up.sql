-- pipeline: runs over the ledger and the archive. A run is resumed under its own version until it is done.
CREATE TABLE pipeline_runs (
  run_id UUID PRIMARY KEY,
  job TEXT NOT NULL,
  app_id TEXT NOT NULL,                    -- whose version it is; the archive's commits carry both
  version BIGINT NOT NULL CHECK (version >= 0),
  lo TIMESTAMPTZ,                          -- the range of the data, without hi
  hi TIMESTAMPTZ,
  cutoff TIMESTAMPTZ,
  state TEXT NOT NULL CHECK (state IN ('planned', 'committed', 'verified', 'purged', 'done', 'failed')),
  row_count BIGINT,
  id_hash_sum NUMERIC,
  report JSONB,
  started_at TIMESTAMPTZ NOT NULL,
  updated_at TIMESTAMPTZ NOT NULL,
  UNIQUE (app_id, version)
);
CREATE UNIQUE INDEX one_open_run ON pipeline_runs (app_id) WHERE state NOT IN ('done', 'failed');
CREATE INDEX idx_pipeline_runs_started ON pipeline_runs (started_at DESC, run_id);
