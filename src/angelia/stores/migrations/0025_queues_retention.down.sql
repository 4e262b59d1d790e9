ALTER TABLE queue_leavings DROP COLUMN emptied_at;
DROP TABLE queue_days, queue_walks, queue_evictions, queue_retention_history, queue_hidden;
DROP INDEX idx_queue_dead_letters_failed, idx_queue_partitions_archive;
ALTER TABLE queue_partitions RESET (fillfactor);
ALTER TABLE queue_partitions DROP COLUMN quiet_at, DROP COLUMN quiet_end, DROP COLUMN ids_floor, DROP COLUMN purge_floor;
