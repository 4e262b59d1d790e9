-- queues: what retention and eviction remember, and how far the upkeep of storage has come.
ALTER TABLE queue_partitions
  ADD COLUMN purge_floor BIGINT,           -- messages before it may leave the disk; NULL: all before the floor. Set while
                                           -- messages from here to the floor wait for the archive
  ADD COLUMN ids_floor BIGINT NOT NULL DEFAULT 0,  -- ids and traces of messages before it were removed
  ADD COLUMN quiet_end BIGINT,             -- no message from this position on was stored before quiet_at: spares
  ADD COLUMN quiet_at TIMESTAMPTZ;         -- looks into the tables of the days before
ALTER TABLE queue_partitions SET (fillfactor = 80);
CREATE INDEX idx_queue_partitions_archive ON queue_partitions (partition_no) WHERE purge_floor IS NOT NULL;
CREATE INDEX idx_queue_dead_letters_failed ON queue_dead_letters (partition_no, failed_at);

-- Since when messages that retention has hidden wait for the archive. A run that has archived messages raises the
-- partition's purge_floor over them and deletes the rows up to there.
CREATE TABLE queue_hidden (
  partition_no BIGINT NOT NULL,
  position BIGINT NOT NULL,                -- messages before it were hidden
  hidden_at TIMESTAMPTZ NOT NULL,
  consumed BIGINT NOT NULL,                -- every consumer group had passed the messages before it then
  PRIMARY KEY (partition_no, position)
);
CREATE INDEX idx_queue_hidden_time ON queue_hidden (hidden_at);

-- What retention removed. After a day, the runs of a day are one row for each partition and kind.
CREATE TABLE queue_retention_history (
  entry_no BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at TIMESTAMPTZ NOT NULL,                 -- of the last run
  queue_name VARCHAR(255) COLLATE "C" NOT NULL,
  partition_no BIGINT NOT NULL,
  partition_name VARCHAR(255) COLLATE "C" NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('retention', 'completed', 'failed', 'partition')),
  count BIGINT NOT NULL,                   -- messages, dead letters, or 1 for a partition
  runs INTEGER NOT NULL DEFAULT 1,
  merged BOOLEAN NOT NULL DEFAULT false
);
CREATE INDEX idx_queue_retention_history_time ON queue_retention_history (at DESC, entry_no DESC);
CREATE INDEX idx_queue_retention_history_queue ON queue_retention_history (queue_name, at DESC, entry_no DESC);
CREATE INDEX idx_queue_retention_history_runs ON queue_retention_history (at) WHERE NOT merged;
CREATE UNIQUE INDEX idx_queue_retention_history_days
  ON queue_retention_history (partition_no, kind, ((at AT TIME ZONE 'UTC')::date)) WHERE merged;

-- Messages that were evicted, by queue and hour. `waited` counts them by the time since their push.
CREATE TABLE queue_evictions (
  queue_no BIGINT NOT NULL,
  hour TIMESTAMPTZ NOT NULL,
  count BIGINT NOT NULL,
  oldest_seconds DOUBLE PRECISION NOT NULL,  -- how long the oldest of them had waited
  waited BIGINT[] NOT NULL,
  PRIMARY KEY (queue_no, hour)
);
CREATE INDEX idx_queue_evictions_hour ON queue_evictions (hour);

-- How far a tick is on its way through all partitions. It goes on there, also in another process.
CREATE TABLE queue_walks (
  name TEXT PRIMARY KEY,
  partition_no BIGINT NOT NULL,
  hash BIGINT,                             -- in queue_ids of this partition, which is being worked on
  position BIGINT,
  floor BIGINT
);

-- Old days of queue_chunks: whether partitions still need chunks of a day, and how far its survivors are copied forward.
CREATE TABLE queue_days (
  day DATE PRIMARY KEY,
  look_at TIMESTAMPTZ NOT NULL,            -- when to look at it next
  copying BOOLEAN NOT NULL DEFAULT false,
  partition_no BIGINT NOT NULL DEFAULT 0,  -- partitions up to here were looked at, or copied
  survivors BIGINT NOT NULL DEFAULT 0,     -- chunks that these need
  copied_bytes BIGINT NOT NULL DEFAULT 0
);

ALTER TABLE queue_leavings ADD COLUMN emptied_at TIMESTAMPTZ;  -- when nothing was found any more
