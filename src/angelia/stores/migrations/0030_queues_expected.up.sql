-- queues: consumer groups that asked for the new messages of a queue before it existed. Once it does, they read it from its beginning.
CREATE TABLE queue_expected (
  queue_name VARCHAR(255) COLLATE "C" NOT NULL,
  group_name VARCHAR(255) COLLATE "C" NOT NULL,
  since TIMESTAMPTZ NOT NULL,
  PRIMARY KEY (queue_name, group_name)
);
CREATE INDEX idx_queue_expected_since ON queue_expected (since);

-- Messages of a queue that some consumer group has still to consume, without deleted and evicted ones; of a queue without groups, all.
CREATE OR REPLACE FUNCTION queue_pending(q BIGINT, today TIMESTAMPTZ) RETURNS BIGINT LANGUAGE sql STABLE AS $$
  SELECT coalesce(sum(greatest(0, n.end_position - greatest(p.floor, g.position)) - CASE WHEN isempty(p.evicted) AND isempty(p.removed) THEN 0
      ELSE queue_count((p.evicted + p.removed)
        * int8multirange(int8range(greatest(p.floor, g.position), greatest(p.floor, g.position, n.end_position)))) END), 0)::bigint
  FROM queue_partitions AS p
  CROSS JOIN LATERAL queue_newest(p.partition_no, today) AS n
  CROSS JOIN LATERAL (
    SELECT coalesce(min(coalesce(c.position, 0)), 0) AS position
    FROM queue_groups AS w
    LEFT JOIN LATERAL (
      SELECT position FROM queue_cursors WHERE partition_no = p.partition_no AND group_no = w.group_no ORDER BY version DESC LIMIT 1
    ) AS c ON true
    WHERE w.queue_no = q
  ) AS g
  WHERE p.queue_no = q AND n.end_position IS NOT NULL
$$;
