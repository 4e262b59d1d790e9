-- queues: what was imported from Queen. A further import adds only what is new, also if messages were removed here since.
CREATE TABLE queen_partitions (
  partition_id UUID PRIMARY KEY,           -- in Queen
  partition_no BIGINT NOT NULL,            -- here
  created_at TIMESTAMPTZ NOT NULL,         -- of the last message that was imported or left out, and its id in Queen:
  message_id UUID NOT NULL,                -- Queen's order is by both
  end_position BIGINT NOT NULL,            -- behind the last message that was imported
  failed_at TIMESTAMPTZ,                   -- of the last dead letter, and its id in Queen
  letter_id UUID
);
