ALTER TABLE data_keys DROP COLUMN used;
