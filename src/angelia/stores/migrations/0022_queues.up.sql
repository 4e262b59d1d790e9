-- queues: queues of ordered partitions, the consumer groups that read them, and dead letters.
--
-- Messages of a partition have positions 0, 1, 2, … in the order in which their pushes were committed. The end of a partition
-- is the end of its last chunk, read under the partition's lock: there is no counter to update. What changes with every pop
-- and acknowledgment is inserted as a new version; a row that is updated again and again would leave a chain of dead
-- versions, which every reader follows while any transaction of the database stays open.

CREATE TABLE queues (
  queue_no BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue_id UUID NOT NULL UNIQUE,
  name VARCHAR(255) COLLATE "C" NOT NULL UNIQUE,
  namespace VARCHAR(255) COLLATE "C" NOT NULL,
  task VARCHAR(255) COLLATE "C" NOT NULL,
  created_at TIMESTAMPTZ NOT NULL,
  options JSONB NOT NULL,                  -- all of them, by their names on the wire
  options_version BIGINT NOT NULL DEFAULT 0  -- a push that knows another version is refused, and asks again
);
CREATE INDEX idx_queues_namespace ON queues (namespace, task);
CREATE INDEX idx_queues_created ON queues (created_at DESC, queue_no DESC);

CREATE TABLE queue_partitions (
  partition_no BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  partition_id UUID NOT NULL UNIQUE,
  queue_no BIGINT NOT NULL,
  name VARCHAR(255) COLLATE "C" NOT NULL,
  created_at TIMESTAMPTZ NOT NULL,
  options JSONB NOT NULL DEFAULT '{}',     -- in place of the queue's
  floor BIGINT NOT NULL DEFAULT 0,         -- messages before it were removed by retention
  floor_at TIMESTAMPTZ,                    -- when the newest of them was pushed
  removed INT8MULTIRANGE NOT NULL DEFAULT '{}',  -- messages that were deleted one by one
  evicted INT8MULTIRANGE NOT NULL DEFAULT '{}',  -- messages that waited too long and that no consumer group consumed
  UNIQUE (queue_no, name)
);

-- A consumer group of a queue. Its cursors say how far it is.
CREATE TABLE queue_groups (
  group_no BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue_no BIGINT NOT NULL,
  name VARCHAR(255) COLLATE "C" NOT NULL,
  mode TEXT NOT NULL CHECK (mode IN ('all', 'new', 'time')),
  from_at TIMESTAMPTZ,                     -- where it began; NULL: at the oldest message
  created_at TIMESTAMPTZ NOT NULL,
  UNIQUE (queue_no, name)
);

-- A chunk: the messages of one push to one partition, or of several that were committed together. One table a day.
CREATE TABLE queue_chunks (
  partition_no BIGINT NOT NULL,
  end_position BIGINT NOT NULL,            -- the position behind its last message
  count INTEGER NOT NULL,                  -- at least 1
  stored_at TIMESTAMPTZ NOT NULL,          -- created_at, or the day to which it was copied when its own was dropped
  created_at TIMESTAMPTZ NOT NULL,         -- rises with the positions of a partition
  first_id UUID NOT NULL,                  -- of the first message; the others count on in the last 48 bits
  only_group BIGINT,                       -- put back for one consumer group, which alone reads it
  key_id UUID,                             -- of the data key that encrypts the payloads; NULL: they are plain
  producer TEXT,
  transaction_ids TEXT[] NOT NULL,
  trace_ids TEXT[],                        -- NULL: no message has one
  ends INTEGER[] NOT NULL,                 -- where each payload ends in the body
  body BYTEA NOT NULL,
  PRIMARY KEY (partition_no, end_position, stored_at)
) PARTITION BY RANGE (stored_at);
CREATE TABLE queue_chunks_default PARTITION OF queue_chunks DEFAULT;
-- Not compressed: a part of a body is read without the rest, and compression costs more than all else that a push does.
ALTER TABLE queue_chunks ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN transaction_ids SET STORAGE EXTERNAL,
  ALTER COLUMN ends SET STORAGE EXTERNAL;
ALTER TABLE queue_chunks_default ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN transaction_ids SET STORAGE EXTERNAL,
  ALTER COLUMN ends SET STORAGE EXTERNAL;

-- The messages of a partition by the hash of their transaction ids. Several ids may have one hash, so a hit is looked up.
CREATE TABLE queue_ids (
  partition_no BIGINT NOT NULL,
  hash BIGINT NOT NULL,
  position BIGINT NOT NULL,
  PRIMARY KEY (partition_no, hash, position)
);

-- How far a consumer group is in a partition, and its lease. The newest version counts; the one before is deleted with it.
CREATE TABLE queue_cursors (
  partition_no BIGINT NOT NULL,
  group_no BIGINT NOT NULL,
  version BIGINT NOT NULL,
  position BIGINT NOT NULL,                -- the first message that is neither settled nor passed
  settled INT8MULTIRANGE NOT NULL,         -- messages that were completed or became dead letters
  passed INT8MULTIRANGE NOT NULL,          -- messages of the lease that are not for this group, or were deleted
  attempts INTEGER NOT NULL,               -- failures since the position changed
  lease_id UUID,
  lease_end BIGINT,                        -- the position behind the last message of the lease
  lease_until TIMESTAMPTZ,
  leased_by TEXT,
  ended_lease UUID,                        -- the lease before, if a failure ended it
  retry_at TIMESTAMPTZ,                    -- after a failure: when messages are delivered again
  read_at TIMESTAMPTZ,                     -- no message from the position on was stored before
  consumed BIGINT NOT NULL,                -- messages ever settled
  consumed_at TIMESTAMPTZ,
  changed_at TIMESTAMPTZ NOT NULL,
  PRIMARY KEY (partition_no, group_no, version)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX idx_queue_cursors_lease ON queue_cursors (lease_id) WHERE lease_id IS NOT NULL;

-- Messages that a consumer group gave up. Each is a copy: retention of its queue does not remove it.
CREATE TABLE queue_dead_letters (
  letter_no BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue_no BIGINT NOT NULL,
  partition_no BIGINT NOT NULL,
  group_no BIGINT NOT NULL,
  position BIGINT NOT NULL,
  message_id UUID NOT NULL,
  transaction_id TEXT NOT NULL,
  trace_id TEXT,
  producer TEXT,
  key_id UUID,
  body BYTEA NOT NULL,
  error TEXT NOT NULL,
  attempts INTEGER NOT NULL,
  created_at TIMESTAMPTZ NOT NULL,
  failed_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX idx_queue_dead_letters_queue ON queue_dead_letters (queue_no, failed_at DESC, letter_no DESC);
CREATE INDEX idx_queue_dead_letters_message ON queue_dead_letters (partition_no, position);
CREATE INDEX idx_queue_dead_letters_time ON queue_dead_letters (failed_at DESC, letter_no DESC);

-- Partitions that were deleted, and whose rows elsewhere are still to be removed.
CREATE TABLE queue_leavings (partition_no BIGINT PRIMARY KEY);

-- One row: whether pushes are buffered, and pops answered with nothing.
CREATE TABLE queue_modes (
  one BOOLEAN PRIMARY KEY DEFAULT true CHECK (one),
  push_paused BOOLEAN NOT NULL DEFAULT false,
  pop_paused BOOLEAN NOT NULL DEFAULT false
);
INSERT INTO queue_modes DEFAULT VALUES;
