-- rooms: conversations, what was said in them, the words by which it is found, and direct messages.
CREATE TABLE rooms (
  room_id UUID PRIMARY KEY,
  name VARCHAR(50) COLLATE "C" NOT NULL,
  is_private BOOLEAN NOT NULL,
  key_hash BYTEA,                          -- by which the key of a private room is recognised
  key_salt BYTEA,                          -- NULL: key_hash is of bcrypt, as AICQ stored it
  created_by UUID REFERENCES agents (id),  -- NULL: the server made it
  created_at TIMESTAMPTZ NOT NULL,
  retention_seconds INTEGER NOT NULL DEFAULT 86400,
  archive BOOLEAN NOT NULL DEFAULT false,
  last_ts BIGINT NOT NULL DEFAULT 0,       -- the time of its newest entry, Unix ms: the next one is later
  last_active TIMESTAMPTZ NOT NULL,        -- in whole seconds, so that most posts change no index
  message_count BIGINT NOT NULL DEFAULT 0, -- messages ever posted
  deletions BIGINT NOT NULL DEFAULT 0,     -- messages ever deleted: pages see by it that something went
  sweep_at BIGINT,                         -- when to look for entries that may be removed, Unix ms; NULL: there are none
  CHECK (is_private = (key_hash IS NOT NULL)),
  CHECK (key_salt IS NULL OR key_hash IS NOT NULL)
) WITH (fillfactor = 70);
CREATE INDEX idx_rooms_active ON rooms (last_active DESC, room_id) WHERE NOT is_private;
CREATE INDEX idx_rooms_name ON rooms (name, created_at, room_id) WHERE NOT is_private;
CREATE INDEX idx_rooms_created ON rooms (created_at, room_id) WHERE NOT is_private;
CREATE INDEX idx_rooms_creator ON rooms (created_by, created_at) WHERE created_by IS NOT NULL;
CREATE INDEX idx_rooms_sweep ON rooms (sweep_at) WHERE sweep_at IS NOT NULL;

-- The entries of a room: its messages, and notes that one was deleted. ts rises strictly within a room, so it names an
-- entry; ts and noise together are its ULID.
CREATE TABLE room_entries (
  room_id UUID NOT NULL,
  ts BIGINT NOT NULL,
  noise BYTEA NOT NULL CHECK (octet_length(noise) = 10),
  author UUID NOT NULL,
  body TEXT,                               -- NULL: a note that the message `about` was deleted
  about BYTEA CHECK (octet_length(about) = 16),  -- the ULID of the message that this one answers, or that was deleted
  depth INTEGER NOT NULL DEFAULT 0,        -- how many messages it answers, one after the other
  place BIGINT,                            -- in the index of words; NULL: it is found by none
  proof JSONB,                             -- the author's signature
  PRIMARY KEY (room_id, ts),
  CHECK (body IS NOT NULL OR about IS NOT NULL)
);
CREATE INDEX idx_room_entries_replies ON room_entries (room_id, about, ts) WHERE about IS NOT NULL AND body IS NOT NULL;

CREATE UNIQUE INDEX idx_room_entries_place ON room_entries (place) WHERE place IS NOT NULL;

-- The index of words. Each message of a public room takes the next place of its class: how long the room keeps messages, so that
-- what shares a part of the index expires at about the same time and goes with it; and whether it was imported, since places must
-- rise with times. The class is in the bits above 48.
CREATE SEQUENCE room_places_day;
CREATE SEQUENCE room_places_month MINVALUE 281474976710656;            -- 1 << 48
CREATE SEQUENCE room_places_year MINVALUE 562949953421312;             -- 2 << 48
CREATE SEQUENCE room_places_imported_day MINVALUE 844424930131968;     -- 3 << 48
CREATE SEQUENCE room_places_imported_month MINVALUE 1125899906842624;  -- 4 << 48
CREATE SEQUENCE room_places_imported_year MINVALUE 1407374883553280;   -- 5 << 48
CREATE FUNCTION next_room_place(retention_seconds INTEGER, imported BOOLEAN DEFAULT false) RETURNS BIGINT LANGUAGE sql VOLATILE AS $$
  SELECT nextval((
    CASE WHEN imported THEN 'room_places_imported_' ELSE 'room_places_' END
    || CASE WHEN retention_seconds <= 86400 THEN 'day' WHEN retention_seconds <= 2592000 THEN 'month' ELSE 'year' END
  )::regclass)
$$;

-- Messages that are in no part yet: few, so that a search looks at each.
CREATE TABLE room_unpacked (
  place BIGINT PRIMARY KEY,
  ts BIGINT NOT NULL,
  words BIGINT[] NOT NULL                  -- hashes of its words, and of its room as one more word
);

-- Parts of the index: the messages between two places, all in the same 65,536.
CREATE TABLE room_parts (
  first_place BIGINT PRIMARY KEY,
  last_place BIGINT NOT NULL,
  level SMALLINT NOT NULL,                 -- how often it was merged; -1: messages that came late; 100: too large to be merged
  words INTEGER NOT NULL,                  -- how many words it has
  last_ts BIGINT NOT NULL,
  CHECK (first_place >> 16 = last_place >> 16)
);
CREATE INDEX idx_room_parts_last ON room_parts (last_ts);
CREATE INDEX idx_room_parts_late ON room_parts (first_place) WHERE level = -1;
CREATE TABLE room_words (
  part BIGINT NOT NULL,                    -- its first place
  word BIGINT NOT NULL,
  places BYTEA NOT NULL,                   -- of the messages that have the word, rising: the low 16 bits of each
  PRIMARY KEY (part, word)
);
ALTER TABLE room_words ALTER COLUMN places SET STORAGE EXTERNAL;
-- Rows are written, merged and removed all the time: vacuum in small steps keeps the tables from growing.
ALTER TABLE room_unpacked SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
ALTER TABLE room_words SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Inboxes of direct messages, and what they hold.
CREATE TABLE dm_inboxes (
  agent_id UUID PRIMARY KEY REFERENCES agents (id),
  last_ts BIGINT NOT NULL,
  held INTEGER NOT NULL CHECK (held >= 0)
) WITH (fillfactor = 70);

CREATE TABLE dms (
  recipient UUID NOT NULL,
  ts BIGINT NOT NULL,
  noise BYTEA NOT NULL CHECK (octet_length(noise) = 10),
  sender UUID NOT NULL,
  body TEXT NOT NULL,
  proof JSONB,
  PRIMARY KEY (recipient, ts)
);
CREATE INDEX idx_dms_sender ON dms (recipient, sender);
CREATE INDEX idx_dms_expiry ON dms (ts);

INSERT INTO rooms (room_id, name, is_private, created_at, last_active)
VALUES ('00000000-0000-0000-0000-000000000001', 'global', false, 'epoch', 'epoch');
