"""Fills every table of the ledger with a row of one agent and a row of another."""

from __future__ import annotations

import asyncpg

from angelia.rooms.model import GLOBAL

_OTHER = "mallory-9"
# Texts that occur only in rows of the other agent: none of them may be in an export.
OTHERS = (_OTHER, "other-mark", "00000000-0000-4000-8000-0000000000bb")
_OURS_ID, _OTHERS_ID, _THIRD_ID = (f"00000000-0000-4000-8000-0000000000{end}" for end in ("aa", "bb", "cc"))
# By kind of row in an export: a column that identifies the agent's rows, and its values.
OURS = {
    "agents": ("id", [_OURS_ID]),
    "former_keys": ("key_id", [_OURS_ID]),
    "blocks": ("blocked_at", ["2026-11-01 00:00:00+00:00", "2026-11-02 00:00:00+00:00"]),
    "tokens": ("label", ["our-mark"]),
    "policies": ("rate", ["our-mark 1", "our-mark 2", "our-mark 3"]),
    "key_records": ("key_id", [_OURS_ID]),
    "bundles": ("bundle", ['{"mark": "our-mark"}']),
    "one_time_keys": ("key_id", [_OURS_ID, _THIRD_ID]),
    "rotation_events": ("event_id", [_OURS_ID]),
    "envelopes": ("dead_reason", ["our-mark 1", "our-mark 2"]),
    "channels": ("channel_name", ["our-mark"]),
    "subscriptions": ("subscription_id", [_OURS_ID]),
    "allowlist": ("channel_id", [_OURS_ID]),
    "channel_messages": ("message_id", [_OURS_ID]),
    "channel_epochs": ("key_id", [_OURS_ID]),
    "rooms_made": ("name", ["our-mark"]),
    "direct_messages": ("body", ["our-mark 1", "our-mark 2"]),
    "rooms": ("body", ["our-mark"]),
    "queue_messages": ("transaction_id", ["our-mark", "our-mark too"]),
    "queue_dead_letters": ("error", ["our-mark"]),
    "queue_traces": ("event_type", ["our-mark"]),
    "queue_buffered": ("payload", ['"our-mark"']),
}
# {nhi} is an agent, {id} an id of its own and {mark} a text of its own.
_EACH = """
INSERT INTO agents (id, handle, public_key, key_id, name, email, aicq_signatures, registered_at)
  VALUES ('{id}', '{nhi}', sha256('{mark}'), '{id}', '{mark}', '{mark}', false, '2026-11-01Z');
INSERT INTO agent_former_keys (key_id, public_key, agent_id, replaced_at, valid_until)
  VALUES ('{id}', sha256('{mark} former'), '{id}', '2026-11-01Z', '2026-11-01Z');
INSERT INTO tokens (id, secret_hash, label, role, agent_id, first_admin, created_at)
  VALUES ('{id}', sha256('{mark}'), '{mark}', 'read-only', '{id}', false, '2026-11-01Z');
INSERT INTO policies (rule_id, priority, effect, action, subject, object, rate, created_by, created_at)
  VALUES (gen_random_uuid(), 1, 'allow', 'send', '{nhi}', '*', '{mark} 1', 'op', '2026-11-01Z'),
    (gen_random_uuid(), 1, 'allow', 'send', '*', '{nhi}', '{mark} 2', 'op', '2026-11-01Z'),
    (gen_random_uuid(), 1, 'allow', 'send', '*', '*', '{mark} 3', '{nhi}', '2026-11-01Z');
INSERT INTO key_records (agent_nhi, key_id, key_type, usage, public_key, status, created_at)
  VALUES ('{nhi}', '{id}', 'xwing', 'signed', '', 'active', '2026-11-01Z');
INSERT INTO bundles (agent_nhi, bundle_version, bundle_hash, prev_bundle_hash, issued_at, expires_at, published_at,
    suites, bundle)
  VALUES ('{nhi}', 1, sha256('{mark}'), sha256(''), '2026-11-01Z', '2026-12-01Z', '2026-11-01Z', 1,
    '{{"mark": "{mark}"}}');
INSERT INTO one_time_keys (agent_nhi, key_id, key_type, public_key, signer_id, signature_ed25519, signature_ml_dsa,
    created_at)
  VALUES ('{nhi}', '{id}', 'xwing', '{mark}', '{id}', '{mark}', '{mark}', '2026-11-01Z');
INSERT INTO rotation_events (event_id, agent_nhi, key_type, old_key_id, rotated_at, reason)
  VALUES ('{id}', '{nhi}', 'xwing', '{id}', '2026-11-01Z', 'scheduled');
INSERT INTO envelopes (bucket, recipient_nhi, mref, sender_nhi, message_id, replay_key, key_id, sender_key_id, priority,
    created_at, accepted_at, queued_at, expires_at, state, dead_at, dead_reason, wire, wire_bytes)
  SELECT get_byte(sha256(convert_to(r, 'UTF8')), 0), r, decode(md5('{mark}' || i), 'hex'), s, gen_random_uuid(),
    sha256(('{mark}' || i)::bytea), '{id}', '{id}', 1, '2026-11-01Z', '2026-11-01Z', '2026-11-01Z', '2026-11-08Z',
    'dead', '2026-11-02Z', '{mark} ' || i, 'sealed', 6
  FROM (VALUES (1, '{nhi}', 'third'), (2, 'third', '{nhi}')) AS v (i, s, r);
INSERT INTO channels (channel_id, owner_nhi, channel_name, policy, created_at, updated_at)
  VALUES ('{id}', '{nhi}', '{mark}', 'open', '2026-11-01Z', '2026-11-01Z');
INSERT INTO channel_subscriptions (subscription_id, channel_id, subscriber_nhi, created_at, updated_at)
  VALUES ('{id}', '{id}', '{nhi}', '2026-11-01Z', '2026-11-01Z');
INSERT INTO channel_allowlist (channel_id, nhi, added_at) VALUES ('{id}', '{nhi}', '2026-11-01Z');
INSERT INTO channel_messages (channel_id, channel_offset, sender_nhi, message_id, replay_key, epoch_key_id, created_at,
    accepted_at, expires_at, wire)
  VALUES ('{id}', 1, '{nhi}', '{id}', sha256('{mark}'), '{id}', '2026-11-01Z', '2026-11-01Z', '2026-11-08Z', 'sealed');
INSERT INTO channel_epochs (channel_id, epoch, key_id, made_by, made_at)
  VALUES ('{id}', 1, '{id}', '{nhi}', '2026-11-01Z');
INSERT INTO rooms (room_id, name, is_private, key_hash, created_by, created_at, last_active)
  VALUES ('{id}', '{mark}', true, '{mark} key', '{id}', '2026-11-01Z', '2026-11-01Z');
INSERT INTO room_entries (room_id, ts, noise, author, body, proof)
  VALUES ('{room}', {number}, '0123456789', '{id}', '{mark}', '{{"mark": "{mark}"}}');
INSERT INTO queues (queue_id, name, namespace, task, created_at, options)
  VALUES ('00000000-0000-4000-8000-0000000000dd', 'shared', '', '', '2026-11-01Z', '{{}}') ON CONFLICT DO NOTHING;
INSERT INTO queue_partitions (partition_id, queue_no, name, created_at)
  SELECT '00000000-0000-4000-8000-0000000000dd', queue_no, 'Default', '2026-11-01Z' FROM queues ON CONFLICT DO NOTHING;
INSERT INTO queue_chunks (partition_no, end_position, count, stored_at, created_at, first_id, producer, transaction_ids,
    ends, body)
  SELECT partition_no, 2 * {number}, 2, '2026-11-01Z', '2026-11-01Z', gen_random_uuid(),
    CASE {number} WHEN 1 THEN '{nhi}' ELSE '{id}' END, ARRAY['{mark}', '{mark} too'], ARRAY[4, 6], 'null"{mark}"'
  FROM queue_partitions;
INSERT INTO queue_dead_letters (queue_no, partition_no, group_no, position, message_id, transaction_id, producer, body,
    error, attempts, created_at, failed_at)
  SELECT queue_no, partition_no, 1, 0, gen_random_uuid(), '{mark}', '{nhi}', '{mark}', '{mark}', 1, '2026-11-01Z',
    '2026-11-01Z' FROM queue_partitions;
INSERT INTO queue_traces (trace_id, queue_no, partition_no, position, transaction_id, group_name, worker, event_type,
    names, data, created_at)
  SELECT '{id}', queue_no, partition_no, 2 * {number} - 1, '{mark}', 'group', 'worker', '{mark}', '{{one, two}}',
    '"{mark}"', '2026-11-01Z' FROM queue_partitions;
INSERT INTO queue_buffered (queue_name, partition_name, message_id, transaction_id, producer, body, buffered_at,
    retry_at)
  VALUES ('shared', 'Default', '{id}', '{mark}', '{nhi}', '"{mark}"', '2026-11-01Z', '2026-11-01Z');
"""
# Blocks by the agent, of the agent, and between others; a key of another agent that it received.
_BETWEEN = f"""
INSERT INTO agents (id, handle, public_key, key_id, name, email, aicq_signatures, registered_at)
  VALUES ('{_THIRD_ID}', 'third', sha256('third'), '{_THIRD_ID}', 'third', '', false, '2026-11-01Z');
INSERT INTO blocks (agent_id, blocked_id, blocked_at) VALUES ('{_OURS_ID}', '{_THIRD_ID}', '2026-11-01Z'),
  ('{_THIRD_ID}', '{_OURS_ID}', '2026-11-02Z'), ('{_OTHERS_ID}', '{_THIRD_ID}', '2026-11-03Z');
INSERT INTO one_time_keys (agent_nhi, key_id, key_type, public_key, signer_id, signature_ed25519, signature_ml_dsa,
    created_at, issued_to, issued_at)
  VALUES ('third', '{_THIRD_ID}', 'xwing', '', '{_THIRD_ID}', '', '', '2026-11-01Z', $agent$, '2026-11-02Z');
INSERT INTO dms (recipient, ts, noise, sender, body) VALUES
  ('{_THIRD_ID}', 1, '0123456789', '{_OURS_ID}', 'our-mark 1'),
  ('{_OURS_ID}', 2, '0123456789', '{_THIRD_ID}', 'our-mark 2'),
  ('{_THIRD_ID}', 3, '0123456789', '{_OTHERS_ID}', 'other-mark'),
  ('{_OTHERS_ID}', 4, '0123456789', '{_THIRD_ID}', 'other-mark');
"""  # noqa: S608


async def told(database_url: str, agent: str) -> None:
    """Inserts the rows of both agents."""
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(_EACH.format(nhi=agent, id=_OURS_ID, mark="our-mark", room=GLOBAL, number=1))
        await connection.execute(_EACH.format(nhi=_OTHER, id=_OTHERS_ID, mark="other-mark", room=GLOBAL, number=2))
        await connection.execute(_BETWEEN.replace("$agent$", f"'{agent}'"))
    finally:
        await connection.close()
