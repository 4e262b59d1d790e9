DO $$
DECLARE
  chunks REGCLASS;
BEGIN
  FOR chunks IN SELECT 'queue_chunks'::regclass UNION ALL SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'queue_chunks'::regclass LOOP
    EXECUTE format('ALTER TABLE %s ALTER transaction_ids SET STATISTICS -1, ALTER trace_ids SET STATISTICS -1, ALTER ends SET STATISTICS -1,
      ALTER body SET STATISTICS -1', chunks);
  END LOOP;
END
$$;
