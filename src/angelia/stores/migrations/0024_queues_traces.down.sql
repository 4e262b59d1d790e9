DROP TABLE queue_workers, queue_minutes, queue_put_back, queue_buffered, queue_traces;
ALTER TABLE queue_modes DROP COLUMN push_resuming;
