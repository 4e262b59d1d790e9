-- queues: what consumers note about messages, pushes that wait for the end of maintenance, and counts by the minute.

-- A trace: what a consumer notes about its work on a message. It leaves with its message.
CREATE TABLE queue_traces (
  trace_no BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  trace_id UUID NOT NULL UNIQUE,
  queue_no BIGINT NOT NULL,
  partition_no BIGINT NOT NULL,
  position BIGINT NOT NULL,                -- of the message
  transaction_id TEXT NOT NULL,
  group_name VARCHAR(255) COLLATE "C" NOT NULL,
  worker TEXT NOT NULL,
  event_type VARCHAR(255) NOT NULL,
  names TEXT[] NOT NULL,                   -- by which it is found
  key_id UUID,                             -- of the data key that encrypts the data; NULL: it is plain
  data BYTEA NOT NULL,
  created_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX idx_queue_traces_message ON queue_traces (partition_no, position, trace_no);
CREATE INDEX idx_queue_traces_id ON queue_traces (partition_no, hashtextextended(transaction_id, 0));
CREATE INDEX idx_queue_traces_names ON queue_traces USING gin (names);

-- Messages that were pushed while pushes were paused, in the order in which they are to be stored.
CREATE TABLE queue_buffered (
  message_no BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue_name VARCHAR(255) COLLATE "C" NOT NULL,
  partition_name VARCHAR(255) COLLATE "C" NOT NULL,
  message_id UUID NOT NULL,                -- to which an encrypted payload is bound; stored, the message has another
  transaction_id TEXT NOT NULL,
  trace_id TEXT,
  producer TEXT,
  key_id UUID,
  body BYTEA NOT NULL,
  buffered_at TIMESTAMPTZ NOT NULL,
  error TEXT,                              -- why it was not stored when that was tried last
  retry_at TIMESTAMPTZ NOT NULL            -- when it may be tried next
);
CREATE INDEX idx_queue_buffered_partition ON queue_buffered (queue_name, partition_name);
ALTER TABLE queue_modes ADD COLUMN push_resuming BOOLEAN NOT NULL DEFAULT false;  -- buffered messages are stored, then pushes are taken again

-- Messages that were put back for one consumer group; they are not counted for the others.
CREATE TABLE queue_put_back (
  partition_no BIGINT NOT NULL,
  position BIGINT NOT NULL,
  group_no BIGINT NOT NULL,
  PRIMARY KEY (partition_no, position)
);

-- What happened in a queue in a minute. `waited` counts deliveries by the time since their push.
CREATE TABLE queue_minutes (
  minute TIMESTAMPTZ NOT NULL,
  queue_no BIGINT NOT NULL,
  pushed BIGINT NOT NULL,
  pushed_bytes BIGINT NOT NULL,
  popped BIGINT NOT NULL,
  completed BIGINT NOT NULL,
  failed BIGINT NOT NULL,
  dead BIGINT NOT NULL,
  evicted BIGINT NOT NULL,
  waited BIGINT[] NOT NULL,
  waited_ms BIGINT NOT NULL,               -- of all deliveries together
  waited_most_ms BIGINT NOT NULL,
  PRIMARY KEY (minute, queue_no)
);
CREATE INDEX idx_queue_minutes_queue ON queue_minutes (queue_no, minute);

-- What a process did in a minute, and what it used.
CREATE TABLE queue_workers (
  minute TIMESTAMPTZ NOT NULL,
  server TEXT NOT NULL,
  worker INTEGER NOT NULL,
  pid INTEGER NOT NULL,
  pushed BIGINT NOT NULL,                  -- messages
  popped BIGINT NOT NULL,
  completed BIGINT NOT NULL,
  failed BIGINT NOT NULL,
  dead BIGINT NOT NULL,
  samples INTEGER NOT NULL,
  cpu_user_ms BIGINT NOT NULL,
  cpu_system_ms BIGINT NOT NULL,
  memory_bytes BIGINT NOT NULL,            -- the newest sample
  loop_ms DOUBLE PRECISION NOT NULL,       -- turns of the event loop, of all samples together
  loop_most_ms DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (minute, server, pid)
);
