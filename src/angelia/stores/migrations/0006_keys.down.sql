DROP TABLE ratchet_states;
DROP TABLE rotation_events;
DROP TABLE one_time_keys;
DROP TABLE bundles;
DROP TABLE key_records;
