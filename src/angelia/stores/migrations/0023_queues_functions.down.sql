DROP FUNCTION queue_extend, queue_ack, queue_bury, queue_pop, queue_push, queue_pending, queue_newest, queue_message_id, queue_first_of,
  queue_position_after, queue_count, queue_lock, queue_partition_lock, queue_cursor_lock;
