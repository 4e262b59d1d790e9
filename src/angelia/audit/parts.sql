-- Parts of which the statements of other slices are made.

-- part: record
-- Records the events in `events`, whose columns are the members of Event and its hash.
INSERT INTO audit_events (event_id, occurred_at, event_type, actor_nhi, object_nhi, message_id, replay_key, detail, event_hash)
SELECT * FROM events
