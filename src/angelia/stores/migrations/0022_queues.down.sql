DROP TABLE queue_modes, queue_leavings, queue_dead_letters, queue_cursors, queue_ids, queue_chunks, queue_groups, queue_partitions, queues;
