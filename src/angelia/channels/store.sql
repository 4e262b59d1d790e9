-- part: of_page
-- Of `channels AS c`: those that the caller's filters let through, after the cursor, in the order of the list.
AND ($4::text IS NULL OR c.owner_nhi = $4) AND ($5::text IS NULL OR c.channel_name = $5)
  AND ($2::timestamptz IS NULL OR (c.created_at, c.channel_id) > ($2, $3::uuid))
ORDER BY c.created_at, c.channel_id LIMIT $6

-- name: add
INSERT INTO channels (channel_id, owner_nhi, channel_name, policy, retention_seconds, max_message_size_bytes,
  max_subscribers, created_at, updated_at)
SELECT $1::uuid, $2::varchar, $3::varchar, $4::text, $5::integer, $6::integer, $7::integer, $8::timestamptz, $8
WHERE NOT EXISTS (SELECT 1 FROM channel_remains WHERE channel_id = $1)
ON CONFLICT DO NOTHING
RETURNING *

-- name: channel
SELECT * FROM channels WHERE channel_id = $1

-- name: lock
-- Always in the order of ids, so that two batches never wait for each other.
SELECT * FROM channels WHERE channel_id = ANY ($1::uuid[]) ORDER BY channel_id FOR UPDATE

-- name: page
-- Channels that the caller owns, is on the allowlist of or subscribes to, and those that are open or under policy
-- rules: each kind by an index of its own, so that a page costs no more for the channels of other agents. `known` is
-- false where only policy rules decide whether the caller may know of the channel.
WITH found AS (
  (SELECT c.channel_id, c.created_at, true AS known FROM channels AS c WHERE c.owner_nhi = $1 {of_page})
  UNION ALL
  (SELECT c.channel_id, c.created_at, c.policy = 'open' FROM channels AS c
    WHERE c.policy IN ('open', 'authz_required') {of_page})
  UNION ALL
  (SELECT c.channel_id, c.created_at, true FROM channel_allowlist AS a JOIN channels AS c USING (channel_id)
    WHERE a.nhi = $1 AND (a.may_subscribe OR a.may_publish) AND c.policy = 'allowlist' {of_page})
  UNION ALL
  (SELECT c.channel_id, c.created_at, true FROM channel_subscriptions AS s JOIN channels AS c USING (channel_id)
    WHERE s.subscriber_nhi = $1 AND s.status IN ('active', 'paused') {of_page})
), page AS (
  SELECT channel_id, bool_or(known) AS known FROM found
  GROUP BY created_at, channel_id ORDER BY created_at, channel_id LIMIT $6
)
SELECT c.*, page.known FROM page JOIN channels AS c USING (channel_id) ORDER BY c.created_at, c.channel_id

-- name: subscribed_page
SELECT c.*, true AS known FROM channels AS c JOIN channel_subscriptions AS s USING (channel_id)
WHERE s.subscriber_nhi = $1 AND s.status IN ('active', 'paused') {of_page}

-- name: update
UPDATE channels SET policy = $2, retention_seconds = $3, max_message_size_bytes = $4, max_subscribers = $5,
  updated_at = $6
WHERE channel_id = $1

-- name: recheck_from
UPDATE channels SET recheck_after = $2 WHERE channel_id = $1

-- name: recheck_due
SELECT channel_id FROM channels WHERE recheck_after IS NOT NULL ORDER BY channel_id LIMIT 1

-- name: recheck_after
SELECT recheck_after FROM channels WHERE channel_id = $1

-- name: rules_behind
-- Channels whose key holders were last checked under an older version of the policy rules.
SELECT channel_id FROM channels WHERE policy = 'authz_required' AND rules_version < $1
ORDER BY rules_version, channel_id LIMIT $2

-- name: recheck_under
UPDATE channels SET rules_version = $2, recheck_after = '' WHERE channel_id = ANY ($1::uuid[])

-- name: close_epoch
-- The number of the epoch stays: the publisher that sets the next key names the number after it.
UPDATE channels SET epoch_key_id = NULL, updated_at = $2 WHERE channel_id = $1

-- name: set_epoch
UPDATE channels SET epoch = $2, epoch_key_id = $3, epoch_at = $4, left_at = NULL, updated_at = $4
WHERE channel_id = $1 RETURNING *

-- name: replace_epoch
UPDATE channel_epochs SET replaced_at = $2 WHERE channel_id = $1 AND replaced_at IS NULL

-- name: add_epoch
INSERT INTO channel_epochs (channel_id, epoch, key_id, made_by, made_at) VALUES ($1, $2, $3, $4, $5)

-- name: epoch
SELECT epoch, key_id, made_by, made_at FROM channel_epochs WHERE channel_id = $1 AND epoch = $2

-- name: note_leave
UPDATE channels SET left_at = $2 WHERE channel_id = $1

-- name: count_subscribers
UPDATE channels SET total_subscribers = total_subscribers + $2 WHERE channel_id = $1

-- name: remove
DELETE FROM channels WHERE channel_id = $1

-- name: remove_roster
DELETE FROM channel_rosters WHERE channel_id = $1

-- name: add_remains
INSERT INTO channel_remains (channel_id, deleted_at) VALUES ($1, $2)


-- The allowlist and the roster.

-- name: listed
SELECT * FROM channel_allowlist WHERE channel_id = $1 AND nhi = ANY ($2::varchar[])

-- name: allowlist
SELECT * FROM channel_allowlist WHERE channel_id = $1 AND nhi > $2 ORDER BY nhi LIMIT $3

-- name: put_listed
INSERT INTO channel_allowlist (channel_id, nhi, may_subscribe, may_publish, added_at)
SELECT $1, nhi, may_subscribe, may_publish, $5
FROM unnest($2::varchar[], $3::boolean[], $4::boolean[]) AS given (nhi, may_subscribe, may_publish)
ON CONFLICT (channel_id, nhi) DO UPDATE
SET may_subscribe = excluded.may_subscribe, may_publish = excluded.may_publish
RETURNING *

-- name: remove_listed
DELETE FROM channel_allowlist WHERE channel_id = $1 AND nhi = ANY ($2::varchar[]) RETURNING *

-- name: roster
SELECT roster FROM channel_rosters WHERE channel_id = $1

-- name: put_roster
INSERT INTO channel_rosters (channel_id, version, roster_hash, roster, stored_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (channel_id) DO UPDATE
SET version = excluded.version, roster_hash = excluded.roster_hash, roster = excluded.roster,
  stored_at = excluded.stored_at

-- name: set_roster_version
UPDATE channels SET roster_version = $2, policy = $3, updated_at = $4 WHERE channel_id = $1 RETURNING *


-- Subscribers ('active', 'paused'), and publishers that hold the key without a subscription ('publishing').

-- name: subscriptions
SELECT * FROM channel_subscriptions WHERE channel_id = $1 AND subscriber_nhi = ANY ($2::varchar[])

-- name: hold_key
-- An agent that makes a key has it, and is sent the next ones; epoch 0 is for an owner that has made none yet.
INSERT INTO channel_subscriptions
  (subscription_id, channel_id, subscriber_nhi, status, key_epoch, created_at, updated_at)
VALUES ($1, $2, $3, 'publishing', $4, $5, $5)
ON CONFLICT (channel_id, subscriber_nhi) DO UPDATE
SET status = CASE channel_subscriptions.status WHEN 'deleted' THEN 'publishing' ELSE channel_subscriptions.status END,
  key_epoch = greatest(channel_subscriptions.key_epoch, excluded.key_epoch), confirmed_at = $5,
  updated_at = excluded.updated_at

-- name: put_subscription
-- A subscriber that comes back has the same id, begins at the end, and is not sent a key again that it has.
INSERT INTO channel_subscriptions (subscription_id, channel_id, subscriber_nhi, last_offset, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $5)
ON CONFLICT (channel_id, subscriber_nhi) DO UPDATE
SET status = 'active', last_offset = greatest(channel_subscriptions.last_offset, excluded.last_offset),
  created_at = excluded.created_at, updated_at = excluded.updated_at
RETURNING *

-- name: set_status
UPDATE channel_subscriptions SET status = $3, updated_at = $4
WHERE channel_id = $1 AND subscriber_nhi = $2 AND status IN ('active', 'paused') RETURNING *

-- name: become
UPDATE channel_subscriptions SET status = $3, updated_at = $4
WHERE channel_id = $1 AND subscriber_nhi = ANY ($2::varchar[])

-- name: commit
UPDATE channel_subscriptions SET last_offset = greatest(last_offset, $3), last_consumed_at = $4, updated_at = $4
WHERE channel_id = $1 AND subscriber_nhi = $2 AND status IN ('active', 'paused') RETURNING *

-- name: subscribers
SELECT * FROM channel_subscriptions
WHERE channel_id = $1 AND status IN ('active', 'paused') AND subscriber_nhi > $2 ORDER BY subscriber_nhi LIMIT $3

-- name: holders
SELECT * FROM channel_subscriptions
WHERE channel_id = $1 AND status <> 'deleted' AND subscriber_nhi > $2 ORDER BY subscriber_nhi LIMIT $3

-- name: without_key
SELECT * FROM channel_subscriptions
WHERE channel_id = $1 AND status <> 'deleted' AND subscriber_nhi > $2 AND key_epoch < $4
ORDER BY subscriber_nhi LIMIT $3

-- name: count_without_key
-- Counts also agents that policy rules refuse by now: to check a thousand names with every look at a channel would cost
-- too much. The list of subscribers leaves them out.
SELECT count(*) FROM (
  SELECT 1 FROM channel_subscriptions WHERE channel_id = $1 AND status <> 'deleted' AND key_epoch < $2 LIMIT $3
) AS lacking

-- name: key_sent
-- In an open channel ($4) any subscriber may report this, so it does not count for a subscriber that has reported its
-- key as lost and not confirmed one since.
UPDATE channel_subscriptions SET key_epoch = $3
WHERE channel_id = $1 AND subscriber_nhi = ANY ($2::varchar[]) AND key_epoch < $3 AND status <> 'deleted'
  AND (NOT $4::boolean OR asked_at IS NULL OR confirmed_at >= asked_at)
RETURNING subscriber_nhi

-- name: key_taken
-- `asked_at` stays: a confirmation must not allow the subscriber to ask more often.
UPDATE channel_subscriptions SET key_epoch = $3, confirmed_at = $4
WHERE channel_id = $1 AND subscriber_nhi = $2 AND status <> 'deleted' RETURNING *

-- name: key_lost
UPDATE channel_subscriptions SET key_epoch = 0, asked_at = $3
WHERE channel_id = $1 AND subscriber_nhi = $2 AND status <> 'deleted' AND (asked_at IS NULL OR asked_at <= $4)
RETURNING *


-- Messages.

-- name: known
-- The messages that senders have published under these ids.
SELECT channel_id, sender_nhi, message_id, channel_offset AS "offset", encode(replay_key, 'hex') AS replay_key, accepted_at,
  expires_at
FROM channel_messages
WHERE (channel_id, sender_nhi, message_id) IN (SELECT * FROM unnest($1::uuid[], $2::varchar[], $3::uuid[]))

-- name: append
INSERT INTO channel_messages (channel_id, channel_offset, sender_nhi, message_id, replay_key, epoch_key_id, created_at,
  accepted_at, expires_at, correlation_id, wire)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::varchar[], $4::uuid[], $5::bytea[], $6::uuid[], $7::timestamptz[],
  $8::timestamptz[], $9::timestamptz[], $10::uuid[], $11::bytea[])

-- name: advance
UPDATE channels SET next_offset = channels.next_offset + given.count,
  total_messages = channels.total_messages + given.count
FROM unnest($1::uuid[], $2::bigint[]) AS given (channel_id, count) WHERE channels.channel_id = given.channel_id

-- name: read
-- A page is bounded in messages and in bytes, but never empty for a message that is larger than the bound.
WITH page AS (
  SELECT channel_offset, sum(octet_length(wire)) OVER (ORDER BY channel_offset) - octet_length(wire) AS before
  FROM channel_messages
  WHERE channel_id = $1 AND channel_offset > $2 AND expires_at > $3 ORDER BY channel_offset LIMIT $4
)
SELECT m.channel_offset AS "offset", m.replay_key, m.accepted_at, m.expires_at, m.wire
FROM page JOIN channel_messages AS m ON m.channel_id = $1 AND m.channel_offset = page.channel_offset
WHERE page.before < $5 ORDER BY m.channel_offset


-- What the ticks delete.

-- name: expired
-- The channels of the messages that expired first. The order by `expires_at` stands in both queries, so that its index
-- serves both.
SELECT channel_id FROM (
  SELECT channel_id, expires_at FROM channel_messages WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2
) AS due GROUP BY channel_id ORDER BY min(expires_at) LIMIT $3

-- name: drop_expired
DELETE FROM channel_messages WHERE (channel_id, channel_offset) IN (
  SELECT channel_id, channel_offset FROM channel_messages
  WHERE channel_id = ANY ($1::uuid[]) AND expires_at <= $2 ORDER BY expires_at LIMIT $3
) RETURNING channel_id

-- name: move_first
-- Only ever forward: to the first message that is left, or to the end.
UPDATE channels AS c SET first_offset = greatest(c.first_offset, coalesce(
  (SELECT min(m.channel_offset) FROM channel_messages AS m WHERE m.channel_id = c.channel_id), c.next_offset))
WHERE c.channel_id = ANY ($1::uuid[])

-- name: remains
SELECT channel_id FROM channel_remains ORDER BY deleted_at LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: drop_messages
DELETE FROM channel_messages WHERE channel_id = $1 AND channel_offset IN (
  SELECT channel_offset FROM channel_messages WHERE channel_id = $1 ORDER BY channel_offset LIMIT $2)

-- name: drop_subscriptions
DELETE FROM channel_subscriptions WHERE channel_id = $1 AND subscriber_nhi IN (
  SELECT subscriber_nhi FROM channel_subscriptions WHERE channel_id = $1 LIMIT $2)

-- name: drop_listed
DELETE FROM channel_allowlist WHERE channel_id = $1 AND nhi IN (
  SELECT nhi FROM channel_allowlist WHERE channel_id = $1 LIMIT $2)

-- name: drop_epochs
DELETE FROM channel_epochs WHERE channel_id = $1 AND epoch IN (
  SELECT epoch FROM channel_epochs WHERE channel_id = $1 LIMIT $2)

-- name: forget_epochs
-- No message under their keys can be read any more.
DELETE FROM channel_epochs WHERE (channel_id, epoch) IN (
  SELECT channel_id, epoch FROM channel_epochs WHERE replaced_at <= $1 ORDER BY replaced_at LIMIT $2)

-- name: remove_remains
DELETE FROM channel_remains WHERE channel_id = $1
