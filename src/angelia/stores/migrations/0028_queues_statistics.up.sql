-- queues: no statistics about what is only stored. No statement chooses chunks by these columns, and to count the elements of thirty
-- thousand arrays takes seconds at each ANALYZE. Tables of days take this over when they are made.
DO $$
DECLARE
  chunks REGCLASS;
BEGIN
  FOR chunks IN SELECT 'queue_chunks'::regclass UNION ALL SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'queue_chunks'::regclass LOOP
    EXECUTE format('ALTER TABLE %s ALTER transaction_ids SET STATISTICS 0, ALTER trace_ids SET STATISTICS 0, ALTER ends SET STATISTICS 0,
      ALTER body SET STATISTICS 0', chunks);
  END LOOP;
END
$$;
