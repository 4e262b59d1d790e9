-- name: channels_about_agent
SELECT channel_id::text AS channel_id, owner_nhi, channel_name, policy, retention_seconds, max_message_size_bytes,
  max_subscribers, epoch, roster_version, total_messages, total_subscribers, created_at, updated_at
FROM channels WHERE owner_nhi = $1 ORDER BY created_at, channel_id

-- name: subscriptions_about_agent
SELECT subscription_id::text AS subscription_id, channel_id::text AS channel_id, subscriber_nhi, status, last_offset,
  last_consumed_at, key_epoch, asked_at, confirmed_at, created_at, updated_at
FROM channel_subscriptions WHERE subscriber_nhi = $1 ORDER BY created_at, subscription_id

-- name: allowlist_about_agent
SELECT channel_id::text AS channel_id, nhi, may_subscribe, may_publish, added_at
FROM channel_allowlist WHERE nhi = $1 ORDER BY added_at, channel_id

-- name: channel_messages_about_agent
-- The messages that the agent published, without their content.
SELECT channel_id::text AS channel_id, channel_offset, sender_nhi, message_id::text AS message_id,
  encode(replay_key, 'hex') AS replay_key, created_at, accepted_at, expires_at, octet_length(wire) AS wire_bytes
FROM channel_messages WHERE sender_nhi = $1 ORDER BY accepted_at, channel_id, channel_offset

-- name: channel_epochs_about_agent
-- The keys of channels that the agent made: ids and times, not the keys.
SELECT channel_id::text AS channel_id, epoch, key_id::text AS key_id, made_by, made_at, replaced_at
FROM channel_epochs WHERE made_by = $1 ORDER BY made_at, channel_id, epoch
