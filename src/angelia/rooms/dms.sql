-- name: to_send
-- Whether the recipient of a direct message exists, has an inbox, and has blocked its sender.
SELECT coalesce((SELECT true FROM agents WHERE id = $1), false) AS found,
  coalesce((SELECT true FROM dm_inboxes WHERE agent_id = $1), false) AS has_inbox, b.blocked
FROM (SELECT a.handle AS recipient, $2::text AS sender FROM (VALUES (1)) AS single LEFT JOIN agents AS a ON a.id = $1) AS w
CROSS JOIN LATERAL ({agents.blocked}) AS b

-- name: make_inbox
INSERT INTO dm_inboxes (agent_id, last_ts, held) VALUES ($1, 0, 0) ON CONFLICT (agent_id) DO NOTHING

-- name: send
-- Stores direct messages, as far as the inboxes have room for them. Times rise strictly within an inbox, which is locked until the
-- commit.
WITH given AS MATERIALIZED (
  SELECT *, row_number() OVER (PARTITION BY recipient ORDER BY n) AS place,
    row_number() OVER (PARTITION BY recipient, sender ORDER BY n) AS place_of_sender
  FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bytea[], $5::text[], $6::jsonb[])
    WITH ORDINALITY AS w (recipient, sender, at_ms, noise, body, proof, n)
), inboxes AS MATERIALIZED (
  SELECT w.recipient, i.last_ts, i.held FROM (SELECT DISTINCT recipient FROM given ORDER BY recipient) AS w
  CROSS JOIN LATERAL (SELECT last_ts, held FROM dm_inboxes WHERE agent_id = w.recipient LIMIT 1 FOR NO KEY UPDATE) AS i
), judged AS MATERIALIZED (
  SELECT g.*, i.last_ts, i.held + g.place > $7 OR g.place_of_sender + (
      SELECT count(*) FROM (SELECT FROM dms AS d WHERE d.recipient = g.recipient AND d.sender = g.sender LIMIT $8) AS of_sender
    ) > $8 AS refused
  FROM given AS g JOIN inboxes AS i ON i.recipient = g.recipient
), placed AS MATERIALIZED (
  SELECT j.*, greatest(last_ts + 1, max(at_ms) OVER (PARTITION BY recipient)) - 1
    + row_number() OVER (PARTITION BY recipient ORDER BY n) AS ts
  FROM judged AS j WHERE NOT refused
), counted AS (
  UPDATE dm_inboxes AS i SET last_ts = p.newest, held = i.held + p.count
  FROM (SELECT recipient, max(ts) AS newest, count(*) AS count FROM placed GROUP BY recipient) AS p
  WHERE i.agent_id = p.recipient
), stored AS (
  INSERT INTO dms (recipient, ts, noise, sender, body, proof)
  SELECT recipient, ts, noise, sender, body, proof FROM placed
)
SELECT (SELECT p.ts FROM placed AS p WHERE p.n = g.n) AS ts FROM given AS g ORDER BY g.n

-- name: inbox
SELECT ts, noise, sender, body, proof FROM dms WHERE recipient = $1 AND ts < $2 AND ts > $3 ORDER BY ts DESC LIMIT $4

-- name: has_from
SELECT EXISTS (SELECT FROM dms WHERE recipient = $1 AND sender = $2)

-- name: remove
WITH gone AS (
  DELETE FROM dms WHERE recipient = $1 AND ts = $2 AND noise = $3 AND ts > $4 RETURNING ts
)
UPDATE dm_inboxes SET held = held - 1 WHERE agent_id = $1 AND EXISTS (SELECT FROM gone)

-- name: expire
-- Removes the oldest direct messages that have expired, at most so many. Inboxes are locked in one order, as when messages are sent.
WITH old AS MATERIALIZED (
  SELECT recipient, ts FROM dms WHERE ts <= $1 ORDER BY ts LIMIT $2
), locked AS MATERIALIZED (
  SELECT agent_id FROM dm_inboxes WHERE agent_id IN (SELECT recipient FROM old) ORDER BY agent_id FOR NO KEY UPDATE
), gone AS (
  DELETE FROM dms AS d USING old, locked
  WHERE d.recipient = locked.agent_id AND d.recipient = old.recipient AND d.ts = old.ts RETURNING d.recipient
), counted AS (
  UPDATE dm_inboxes AS i SET held = i.held - w.count
  FROM (SELECT recipient, count(*) AS count FROM gone GROUP BY recipient) AS w WHERE i.agent_id = w.recipient
)
SELECT count(*) FROM gone
