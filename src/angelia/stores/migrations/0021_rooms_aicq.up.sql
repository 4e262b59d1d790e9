-- rooms: what was imported from AICQ. A further import adds only what is new, also if a message was deleted here since.
CREATE TABLE aicq_rooms (
  room_id UUID NOT NULL,
  created_at TIMESTAMPTZ NOT NULL,  -- in AICQ: the global rooms of two AICQ servers have one id
  message_count BIGINT NOT NULL,    -- of AICQ, as far as it was added to the room's
  PRIMARY KEY (room_id, created_at)
);

CREATE TABLE aicq_messages (
  conversation UUID NOT NULL,       -- the room, or the recipient of a direct message
  id BYTEA NOT NULL CHECK (octet_length(id) = 16),  -- its ULID in AICQ
  ts BIGINT NOT NULL,               -- its time here; the random part of the ULID is the same
  PRIMARY KEY (conversation, id)
);
