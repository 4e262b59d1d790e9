-- The statements of the mailbox, by the module that uses them. Values are always bound. The text of a `columns` block
-- replaces its name in braces. After a transaction with a statement that is marked `destroys`, no file of the database
-- holds the destroyed bytes any more.

-- name: read_meta
SELECT value FROM meta WHERE name = ?

-- name: write_meta
INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: drop_meta
DELETE FROM meta WHERE name = ?


-- replay.py

-- name: remember
-- The one statement that decides which process opens an envelope.
INSERT INTO replay_state (replay_key, msg_id, sender_nhi, sender_fp, recipient_fp, seen_at, envelope_timestamp,
                          expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING 1

-- name: id_used
-- Another envelope of the sender under the same id, also if another of its pairs signed it, or one that was revoked since.
-- A row without a sender may be this sender's.
SELECT 1 FROM replay_state
WHERE msg_id = ? AND replay_key <> ? AND (sender_nhi = ? OR sender_nhi IS NULL)

-- name: forget
DELETE FROM replay_state WHERE replay_key = ?

-- name: seen_at
SELECT seen_at FROM replay_state WHERE replay_key = ?

-- name: legacy_since
SELECT 1 FROM legacy_msg_ids WHERE msg_id = ? AND imported_at > ?

-- name: newest_seen
SELECT max(seen_at) FROM replay_state

-- name: prune_replay
DELETE FROM replay_state WHERE replay_key IN (
  SELECT replay_key FROM replay_state WHERE seen_at < ? AND expires_at < ? LIMIT ?
) RETURNING expires_at

-- name: prune_legacy
DELETE FROM legacy_msg_ids WHERE imported_at <= ?


-- open_failures.py

-- name: count_failures
SELECT count(*) FROM failures WHERE sender_fp = ? AND failed_at > ?

-- name: add_failure
INSERT INTO failures (replay_key, sender_fp, failed_at) VALUES (?, ?, ?)
ON CONFLICT (replay_key) DO UPDATE SET failed_at = excluded.failed_at

-- name: prune_failures
DELETE FROM failures WHERE failed_at <= ?


-- inbox.py

-- columns: inbox_columns
replay_key, msg_id, sender_nhi, sender_fp, recipient_nhi, channel_id, correlation_id, priority,
created_at, received_at, expires_at, status, acked_at

-- name: add_inbox
INSERT INTO inbox ({inbox_columns}, body_nonce, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: add_control
INSERT INTO controls (replay_key) VALUES (?)

-- name: add_unhandled
INSERT INTO unhandled (replay_key) VALUES (?)

-- name: is_unhandled
SELECT 1 FROM unhandled WHERE replay_key = ?

-- name: unhandled
SELECT replay_key FROM unhandled JOIN inbox USING (replay_key) ORDER BY received_at, created_at, replay_key

-- name: end_unhandled
DELETE FROM unhandled WHERE replay_key = ?

-- name: inbox_page
-- Messages that were fetched together have the same received_at; then created_at decides.
SELECT {inbox_columns} FROM inbox
WHERE (received_at, created_at, replay_key) < (?, ?, ?) AND replay_key NOT IN (SELECT replay_key FROM controls)
ORDER BY received_at DESC, created_at DESC, replay_key DESC LIMIT ?

-- name: inbox_between
-- Two rows are enough to know that a prefix is not unique.
SELECT {inbox_columns} FROM inbox WHERE replay_key >= ? AND replay_key < ? ORDER BY replay_key LIMIT 2

-- name: inbox_controls
-- By length of the content: so most control messages of another kind are not read at all.
SELECT {inbox_columns} FROM inbox JOIN controls USING (replay_key)
WHERE status = 'unread' AND (received_at, replay_key) > (?, ?) AND length(body) BETWEEN ? AND ?
ORDER BY received_at, replay_key LIMIT ?

-- name: count_controls
SELECT count(*) FROM controls JOIN inbox USING (replay_key) WHERE status = 'unread' AND sender_fp = ?

-- name: something_handled
SELECT 1 FROM controls JOIN inbox USING (replay_key) WHERE status = 'read' AND expires_at < ? LIMIT 1

-- name: prune_controls
-- destroys
-- Handled control messages that cannot be delivered again. Their content may be the last copy of a key.
DELETE FROM inbox WHERE replay_key IN (
  SELECT replay_key FROM controls JOIN inbox USING (replay_key) WHERE status = 'read' AND expires_at < ? LIMIT ?
) RETURNING replay_key

-- name: inbox_answer
SELECT {inbox_columns} FROM inbox
WHERE correlation_id = ? AND sender_nhi = ? AND replay_key NOT IN (SELECT replay_key FROM controls)
ORDER BY received_at LIMIT 1

-- name: was_deleted
SELECT 1 FROM replay_state AS opened
WHERE msg_id = ? AND sender_nhi = ? AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.replay_key = opened.replay_key)

-- name: is_control
SELECT 1 FROM controls WHERE replay_key = ?

-- name: inbox_body
SELECT body_nonce, body FROM inbox WHERE replay_key = ?

-- name: inbox_keys
SELECT replay_key FROM inbox

-- name: mark_read
UPDATE inbox SET status = 'read' WHERE replay_key = ?

-- name: mark_handled
UPDATE inbox SET status = 'read' WHERE replay_key = ? AND replay_key IN (SELECT replay_key FROM controls)

-- name: delete_inbox
-- destroys
DELETE FROM inbox WHERE replay_key = ?

-- name: mark_acked
UPDATE inbox SET acked_at = ? WHERE replay_key = ? AND acked_at IS NULL


-- outbox.py

-- columns: outbox_columns
replay_key, msg_id, recipient_nhi, channel_id, correlation_id, created_at, expires_at, status, attempts,
next_try_at, body IS NOT NULL, said, coalesce(said_reason, ''), said_at, withdraw_asked_at, reseals, bundle_version,
one_time, coalesce(waits_for, '')

-- name: add_outbox
INSERT INTO outbox (replay_key, msg_id, recipient_nhi, channel_id, correlation_id, created_at, expires_at,
                    next_try_at, reseals, bundle_version, one_time, body_nonce, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: outbox_one
SELECT {outbox_columns} FROM outbox WHERE replay_key = ?

-- name: outbox_successor
-- Of a message that was resealed: its one envelope that was not replaced.
SELECT {outbox_columns} FROM outbox WHERE msg_id = ? AND recipient_nhi = ? AND status <> 'resealed'

-- name: outbox_between
SELECT {outbox_columns} FROM outbox WHERE replay_key >= ? AND replay_key < ? ORDER BY replay_key LIMIT 2

-- name: outbox_page
SELECT {outbox_columns} FROM outbox WHERE (created_at, replay_key) < (?, ?) ORDER BY created_at DESC, replay_key DESC LIMIT ?

-- name: outbox_due
SELECT {outbox_columns} FROM outbox
WHERE (next_try_at <= ?1 OR (next_try_at > ?2 AND (reseals = 0 OR next_try_at > ?3)))
  AND expires_at > ?1 AND withdraw_asked_at IS NULL
ORDER BY next_try_at LIMIT ?4

-- name: outbox_to_withdraw
SELECT {outbox_columns} FROM outbox WHERE withdraw_asked_at IS NOT NULL AND status IN ('stored', 'queued') AND expires_at > ?
ORDER BY withdraw_asked_at

-- name: outbox_unsettled
-- Also messages that the server refused by its own word, and the replaced envelopes of resealed messages that are not
-- settled: a recipient may have one of them.
SELECT {outbox_columns} FROM outbox WHERE status IN ('queued', 'delivered') AND expires_at > ?1
UNION ALL
SELECT {outbox_columns} FROM outbox WHERE status = 'stored' AND said IS NOT NULL AND expires_at > ?1
UNION ALL
SELECT {outbox_columns} FROM outbox WHERE status = 'resealed' AND expires_at > ?1
  AND msg_id IN (SELECT msg_id FROM outbox WHERE reseals > 0 AND status IN ('stored', 'queued'))
ORDER BY created_at

-- name: spend_one_time
INSERT INTO spent_one_time (key_id, until) VALUES (?, ?) ON CONFLICT (key_id) DO NOTHING RETURNING 1

-- name: prune_spent
DELETE FROM spent_one_time WHERE until <= ?

-- name: hand_over
UPDATE outbox SET next_try_at = NULL, waits_for = NULL WHERE replay_key = ? AND status = 'stored'

-- name: outbox_body
SELECT body_nonce, body FROM outbox WHERE replay_key = ?

-- name: outbox_keys
SELECT replay_key FROM outbox

-- name: set_outbox_status
UPDATE outbox SET status = ?, next_try_at = NULL, waits_for = NULL, said = NULL, said_reason = NULL, said_at = NULL
WHERE replay_key = ?

-- name: set_outbox_said
UPDATE outbox SET said = ?, said_reason = ?, said_at = ? WHERE replay_key = ?

-- name: ask_withdrawal
UPDATE outbox SET withdraw_asked_at = coalesce(withdraw_asked_at, ?) WHERE replay_key = ?

-- name: forget_withdrawal
UPDATE outbox SET withdraw_asked_at = NULL WHERE replay_key = ?

-- name: give_up_outbox
UPDATE outbox SET next_try_at = NULL, waits_for = ? WHERE replay_key = ? AND status = 'stored'

-- name: retry_outbox_now
-- Not messages that a person carries: they were never tried, refused or given up.
UPDATE outbox SET next_try_at = ?, said = NULL, said_reason = NULL, said_at = NULL
WHERE status = 'stored' AND (next_try_at IS NOT NULL OR said IS NOT NULL OR waits_for IS NOT NULL)
  AND body IS NOT NULL AND expires_at > ? AND withdraw_asked_at IS NULL RETURNING 1

-- name: delete_outbox
-- destroys
-- Together with the envelopes that it replaced.
DELETE FROM outbox WHERE msg_id = ? AND recipient_nhi = ? RETURNING replay_key

-- name: outbox_of_message
SELECT replay_key FROM outbox WHERE msg_id = ? AND recipient_nhi = ?

-- name: forget_outbox_try
UPDATE outbox SET next_try_at = NULL WHERE replay_key = ?

-- name: clear_outbox_body
-- destroys
UPDATE outbox SET body_nonce = NULL, body = NULL WHERE replay_key = ?

-- name: set_outbox_retry
UPDATE outbox SET attempts = ?, next_try_at = ?, waits_for = ? WHERE replay_key = ?

-- name: expire_outbox
-- destroys
-- A day after a message expired, by this clock. It is `expired` only if no server accepted it; otherwise only its
-- recipient knows the outcome.
UPDATE outbox SET
  status = CASE status WHEN 'stored' THEN 'expired' ELSE status END, next_try_at = NULL, body_nonce = NULL, body = NULL
WHERE body IS NOT NULL AND expires_at <= ?


-- pinned_keys.py

-- columns: pin_columns
nhi, signer_id, fingerprint, ed25519_public_key, ml_dsa_public_key, bundle_version, bundle_hash, trusted_by,
pinned_at

-- name: pin
SELECT {pin_columns} FROM pins WHERE nhi = ?

-- name: pins
SELECT {pin_columns} FROM pins ORDER BY nhi

-- name: set_pin
INSERT INTO pins ({pin_columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (nhi) DO UPDATE SET
  signer_id = excluded.signer_id, fingerprint = excluded.fingerprint, ed25519_public_key = excluded.ed25519_public_key,
  ml_dsa_public_key = excluded.ml_dsa_public_key, bundle_version = excluded.bundle_version,
  bundle_hash = excluded.bundle_hash, trusted_by = excluded.trusted_by, pinned_at = excluded.pinned_at

-- name: add_former
INSERT INTO former_signers (nhi, signer_id, fingerprint, ed25519_public_key, ml_dsa_public_key, rotated_at)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (nhi, signer_id) DO UPDATE SET rotated_at = excluded.rotated_at

-- name: drop_former
DELETE FROM former_signers WHERE nhi = ?

-- name: was_pair
SELECT 1 FROM former_signers WHERE nhi = ? AND signer_id = ?

-- name: former
-- A thief of a pair can backdate envelopes, so a revoked pair is trusted for none.
SELECT ed25519_public_key, ml_dsa_public_key, rotated_at FROM former_signers
WHERE nhi = ?1 AND signer_id = ?2
  AND NOT EXISTS (SELECT 1 FROM revocations WHERE nhi = ?1 AND key_id = ?2)

-- name: set_bundle
INSERT INTO bundles (nhi, link, fetched_at) VALUES (?, ?, ?)
ON CONFLICT (nhi) DO UPDATE SET link = excluded.link, fetched_at = excluded.fetched_at

-- name: bundle
SELECT link, fetched_at FROM bundles WHERE nhi = ?

-- name: hear_revoked
INSERT INTO revocations (nhi, key_id, bundle_version) VALUES (?, ?, ?)
ON CONFLICT (nhi, key_id) DO UPDATE SET bundle_version = max(bundle_version, excluded.bundle_version)

-- name: revoked
SELECT key_id, bundle_version FROM revocations WHERE nhi = ?

-- name: forget_revoked
DELETE FROM revocations WHERE nhi = ?

-- name: drop_bundle
DELETE FROM bundles WHERE nhi = ?


-- allowlist.py

-- name: is_allowed
SELECT 1 FROM allowlist WHERE fingerprint = ?

-- name: is_listed
SELECT 1 FROM allowlist WHERE nhi = ?

-- name: allow
INSERT INTO allowlist (fingerprint, nhi, label, added_at) VALUES (?, ?, ?, ?)
ON CONFLICT (fingerprint) DO UPDATE SET nhi = excluded.nhi, label = coalesce(excluded.label, label)

-- name: allow_successor
-- An allowed sender stays allowed when its old pair vouched for the new one.
INSERT INTO allowlist (fingerprint, nhi, label, added_at)
SELECT ?, nhi, label, ? FROM allowlist WHERE fingerprint = ?
ON CONFLICT (fingerprint) DO NOTHING

-- name: deny
DELETE FROM allowlist WHERE nhi = ? RETURNING fingerprint

-- name: allowlist
SELECT fingerprint, nhi, label, added_at FROM allowlist ORDER BY nhi, added_at, fingerprint


-- local_key.py: the columns under the local key, by table, in the order of the primary key. Each row gives its key, the
-- id that its content is bound to, nonce and content.

-- name: inbox_sealed
SELECT replay_key, replay_key, body_nonce, body FROM inbox WHERE replay_key > ? ORDER BY replay_key LIMIT ?

-- name: inbox_seal_again
-- destroys
UPDATE inbox SET body_nonce = ?, body = ? WHERE replay_key = ?

-- name: outbox_sealed
SELECT replay_key, replay_key, body_nonce, body FROM outbox
WHERE body IS NOT NULL AND replay_key > ? ORDER BY replay_key LIMIT ?

-- name: outbox_seal_again
-- destroys
UPDATE outbox SET body_nonce = ?, body = ? WHERE replay_key = ?

-- name: kem_keys_sealed
SELECT key_id, key_id, seed_nonce, seed FROM kem_keys WHERE key_id > ? ORDER BY key_id LIMIT ?

-- name: kem_keys_seal_again
-- destroys
UPDATE kem_keys SET seed_nonce = ?, seed = ? WHERE key_id = ?

-- name: channel_keys_sealed
SELECT channel_id || '/' || key_id, key_id, secret_nonce, secret FROM channel_keys
WHERE channel_id || '/' || key_id > ? ORDER BY 1 LIMIT ?

-- name: channel_keys_seal_again
-- destroys
UPDATE channel_keys SET secret_nonce = ?, secret = ? WHERE channel_id || '/' || key_id = ?

-- name: log_keys_sealed
SELECT row_id, row_id, secret_nonce, secret FROM log_keys WHERE row_id > ? ORDER BY 1 LIMIT ?

-- name: log_keys_seal_again
-- destroys
UPDATE log_keys SET secret_nonce = ?, secret = ? WHERE row_id = ?


-- keyring.py and key_rotation.py

-- name: kem_key
SELECT key_type, usage, seed_nonce, seed FROM kem_keys WHERE key_id = ? AND (destroy_at IS NULL OR destroy_at > ?)

-- name: put_kem_key
INSERT INTO kem_keys (key_id, key_type, usage, status, public_key, seed_nonce, seed, created_at, rotated_at, destroy_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key_id) DO UPDATE SET
  status = excluded.status, rotated_at = excluded.rotated_at, destroy_at = excluded.destroy_at

-- name: use_one_time
-- destroys
DELETE FROM kem_keys WHERE key_id = ? AND usage = 'one_time' RETURNING 1

-- name: count_one_time
SELECT count(*) FROM kem_keys WHERE usage = 'one_time' AND created_at > ?

-- name: something_overdue
SELECT 1 WHERE EXISTS (SELECT 1 FROM kem_keys WHERE destroy_at <= ?1)
            OR EXISTS (SELECT 1 FROM outbox WHERE body IS NOT NULL AND expires_at <= ?2)
            OR EXISTS (SELECT 1 FROM channel_keys WHERE destroy_at <= ?1)

-- name: destroy_overdue
-- destroys
DELETE FROM kem_keys WHERE destroy_at <= ?

-- name: active_separate
SELECT key_id FROM kem_keys WHERE usage = 'signed' AND status = 'active'

-- name: drop_kem_key
-- destroys
DELETE FROM kem_keys WHERE key_id = ?

-- name: destroy_replaced
-- destroys
DELETE FROM kem_keys WHERE key_id = ? AND status = 'grace'

-- name: retire_kem_key
UPDATE kem_keys SET status = 'grace', rotated_at = ?, destroy_at = ? WHERE key_id = ?

-- name: destroy_grace
-- destroys
DELETE FROM kem_keys WHERE usage = 'signed' AND status = 'grace'

-- name: hasten_one_time
UPDATE kem_keys SET destroy_at = min(destroy_at, ?) WHERE usage = 'one_time'

-- name: own_newest
SELECT link FROM own_bundles ORDER BY bundle_version DESC LIMIT 1

-- name: own_links
SELECT link FROM own_bundles ORDER BY bundle_version

-- name: masks_between
-- The suites of the bundles that were in force at some time between two times.
SELECT suites FROM own_bundles
WHERE issued_at <= ?2 AND issued_at >= coalesce((SELECT max(issued_at) FROM own_bundles WHERE issued_at < ?1), '')

-- name: drop_own
DELETE FROM own_bundles

-- name: add_own
INSERT INTO own_bundles (bundle_version, issued_at, suites, link) VALUES (?, ?, ?, ?)
ON CONFLICT (bundle_version) DO NOTHING


-- channels.py

-- name: join_channel
INSERT INTO channels (channel_id, name, joined_at) VALUES (?, ?, ?)
ON CONFLICT (channel_id) DO UPDATE SET name = excluded.name

-- name: revive_channel_key
-- A subscriber that rejoins in the same epoch is not sent its key again.
UPDATE channel_keys SET destroy_at = NULL
WHERE channel_id = ?1 AND epoch = (SELECT max(epoch) FROM channel_keys WHERE channel_id = ?1)
  AND epoch >= coalesce((SELECT epoch FROM channel_epochs WHERE channel_id = ?1), 0)

-- name: leave_channel
DELETE FROM channels WHERE channel_id = ?

-- name: joined_channel
SELECT name FROM channels WHERE channel_id = ?

-- name: channel_joined_as
SELECT channel_id FROM channels WHERE name = ?

-- name: add_channel_key
-- A key that arrives again is in use again. Only a publisher says under which roster a key was made, and its first
-- statement stands: a later one could make an old key look new.
INSERT INTO channel_keys (channel_id, key_id, epoch, secret_nonce, secret, sender_nhi, received_at, roster_signer,
  roster_version, spent)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (channel_id, key_id) DO UPDATE SET destroy_at = NULL,
  sender_nhi = iif(roster_version IS NULL AND excluded.roster_version IS NOT NULL, excluded.sender_nhi, sender_nhi),
  roster_signer = iif(roster_version IS NULL, excluded.roster_signer, roster_signer),
  roster_version = coalesce(roster_version, excluded.roster_version)

-- name: retire_channel_keys
UPDATE channel_keys SET destroy_at = ? WHERE channel_id = ? AND epoch < ? AND destroy_at IS NULL

-- name: channel_key
SELECT secret_nonce, secret FROM channel_keys
WHERE channel_id = ? AND key_id = ? AND (destroy_at IS NULL OR destroy_at > ?)

-- name: present_channel_key
-- A replaced key only opens; so does a key that is too old for the roster, or newer than the roster that is pinned here.
-- The key of an open channel is no secret.
SELECT secret_nonce, secret FROM channel_keys WHERE channel_id = ?1 AND key_id = ?2 AND destroy_at IS NULL AND (
  EXISTS (SELECT 1 FROM channel_rosters WHERE channel_id = ?1 AND policy = 'open')
  OR NOT spent AND roster_version IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM channel_rosters AS r WHERE r.channel_id = ?1
      AND NOT (roster_signer IS r.signer_id AND roster_version BETWEEN r.keys_since AND r.version)
  )
)

-- name: key_made_under
SELECT roster_signer, roster_version FROM channel_keys WHERE channel_id = ? AND key_id = ? AND roster_signer IS NOT NULL

-- name: newest_epoch
-- By the server's word, and by keys that other members sent: a key that was made here may never have reached a server.
SELECT max(epoch) FROM (
  SELECT epoch FROM channel_epochs WHERE channel_id = ?1
  UNION ALL SELECT epoch FROM channel_keys
  WHERE channel_id = ?1 AND sender_nhi <> ?2 AND NOT spent AND roster_version IS NOT NULL
)

-- name: forget_epoch
DELETE FROM channel_epochs WHERE channel_id = ?

-- name: spend_channel_keys
UPDATE channel_keys SET spent = TRUE WHERE channel_id = ?

-- name: spend_all_channel_keys
UPDATE channel_keys SET spent = TRUE

-- name: heard_epoch
INSERT INTO channel_epochs (channel_id, epoch) VALUES (?, ?)
ON CONFLICT (channel_id) DO UPDATE SET epoch = max(epoch, excluded.epoch)

-- name: channel_unreached
SELECT nhi, code, reason FROM channel_unreached WHERE channel_id = ? AND epoch = ? AND next_try > ?

-- name: channel_failures
SELECT failures FROM channel_unreached WHERE channel_id = ? AND epoch = ? AND nhi = ?

-- name: put_off_channel_key
INSERT INTO channel_unreached (channel_id, epoch, nhi, failures, next_try, code, reason) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (channel_id, epoch, nhi) DO UPDATE
SET failures = excluded.failures, next_try = excluded.next_try, code = excluded.code, reason = excluded.reason

-- name: forget_unreached
DELETE FROM channel_unreached WHERE channel_id = ? AND epoch < ?

-- name: destroy_channel_keys
-- destroys
DELETE FROM channel_keys WHERE destroy_at <= ?

-- name: add_channel_opened
INSERT INTO channel_opened (channel_id, channel_offset, replay_key, sender_fp, msg_id, expires_at)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: channel_opened
SELECT replay_key FROM channel_opened WHERE channel_id = ? AND channel_offset = ?

-- name: prune_channel_opened
DELETE FROM channel_opened WHERE (channel_id, channel_offset) IN (
  SELECT channel_id, channel_offset FROM channel_opened WHERE expires_at < ? LIMIT ?
) RETURNING expires_at


-- rosters.py

-- name: pinned_roster
SELECT roster, forgotten FROM channel_rosters WHERE channel_id = ?

-- name: named_roster
SELECT roster, forgotten FROM channel_rosters WHERE name = ?

-- name: rosters_of_former_pairs
SELECT roster FROM channel_rosters WHERE owner_nhi = ? AND signer_id <> ? AND NOT forgotten ORDER BY name

-- name: pin_roster
INSERT INTO channel_rosters (channel_id, name, owner_nhi, signer_id, policy, version, keys_since, roster, pinned_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (channel_id) DO UPDATE
SET name = excluded.name, owner_nhi = excluded.owner_nhi, signer_id = excluded.signer_id, policy = excluded.policy,
  version = excluded.version,
  keys_since = excluded.keys_since, roster = excluded.roster, forgotten = FALSE, pinned_at = excluded.pinned_at

-- name: forget_roster
UPDATE channel_rosters SET forgotten = TRUE WHERE channel_id = ?

-- name: drop_roster
DELETE FROM channel_rosters WHERE channel_id = ?


-- held_mail.py

-- name: keep_out
INSERT INTO kept_out (replay_key, sender_nhi, lease_token, kept_at, expires_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (replay_key) DO NOTHING

-- name: is_kept_out
SELECT 1 FROM kept_out WHERE replay_key = ?

-- name: prune_kept_out
DELETE FROM kept_out WHERE expires_at <= ?1
  OR replay_key IN (SELECT replay_key FROM kept_out ORDER BY kept_at DESC LIMIT -1 OFFSET ?2)

-- name: admitted
SELECT replay_key, sender_nhi, lease_token, kept_at, expires_at FROM kept_out
WHERE expires_at > ? AND sender_nhi IN (SELECT nhi FROM allowlist) ORDER BY kept_at LIMIT ?

-- name: forget_kept_out
DELETE FROM kept_out WHERE replay_key = ?


-- repeated_envelopes.py

-- name: repeated_told
SELECT told_at, unheard FROM repeated WHERE replay_key = ?

-- name: tell_repeated
INSERT INTO repeated (replay_key, told_at, unheard) VALUES (?, ?, 1)
ON CONFLICT (replay_key) DO UPDATE SET told_at = excluded.told_at, unheard = unheard + 1

-- name: heard_repeated
UPDATE repeated SET unheard = 0 WHERE replay_key = ?

-- name: prune_repeated
DELETE FROM repeated WHERE told_at <= ?


-- calyx_import.py

-- name: add_legacy
INSERT INTO legacy_msg_ids (msg_id, imported_at) VALUES (?, ?) ON CONFLICT (msg_id) DO NOTHING RETURNING 1


-- logs.py

-- name: put_log
INSERT INTO logs (group_id, name, number, edition, sender_nhi, sender_fp, joined_at) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (group_id) DO UPDATE
SET name = excluded.name, number = excluded.number, edition = excluded.edition, sender_nhi = excluded.sender_nhi,
  sender_fp = excluded.sender_fp

-- name: log
SELECT edition, sender_fp FROM logs WHERE group_id = ?

-- name: logs
SELECT edition FROM logs ORDER BY name, group_id

-- name: any_log
SELECT 1 FROM logs LIMIT 1

-- name: unsettled_logs
SELECT group_id FROM logs WHERE settle_at <= ?

-- name: settle_log_at
UPDATE logs SET settle_at = ?2 WHERE group_id = ?1

-- name: untold_members
SELECT sender, epoch FROM log_untold WHERE group_id = ?

-- name: add_untold_member
-- One that was not sent an earlier edition either lacks the keys since that one.
INSERT INTO log_untold (group_id, sender, epoch) VALUES (?, ?, ?)
ON CONFLICT (group_id, sender) DO UPDATE SET epoch = min(epoch, excluded.epoch)

-- name: drop_untold_member
DELETE FROM log_untold WHERE group_id = ? AND sender = ?

-- name: drop_untold_members
DELETE FROM log_untold WHERE group_id = ?

-- name: put_log_key
-- A key that is there stands.
INSERT INTO log_keys (row_id, group_id, epoch, key_id, secret_nonce, secret, received_at) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING

-- name: log_keys
SELECT row_id, secret_nonce, secret FROM log_keys WHERE group_id = ? AND epoch = ? ORDER BY received_at, row_id

-- name: log_keys_since
SELECT epoch, row_id, secret_nonce, secret FROM log_keys WHERE group_id = ? AND epoch > ? ORDER BY epoch, received_at

-- name: log_key
SELECT row_id, secret_nonce, secret FROM log_keys WHERE group_id = ? AND epoch = ? AND key_id IS ?

-- name: drop_log
DELETE FROM logs WHERE group_id = ?

-- name: drop_log_keys
-- destroys
DELETE FROM log_keys WHERE group_id = ?
