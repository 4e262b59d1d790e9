-- keys: how many encryptions by each data key are done or reserved, so that it is replaced before its nonces may repeat.
ALTER TABLE data_keys ADD COLUMN used BIGINT NOT NULL DEFAULT 0;
