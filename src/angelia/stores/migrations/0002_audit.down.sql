DROP TABLE audit_checkpoints;
DROP TABLE audit_sealer;
DROP TABLE audit_chain;
DROP TABLE audit_events;
