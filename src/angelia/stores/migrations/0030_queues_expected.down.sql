CREATE OR REPLACE FUNCTION queue_pending(q BIGINT, today TIMESTAMPTZ) RETURNS BIGINT LANGUAGE sql STABLE AS $$
  SELECT coalesce(sum(greatest(0, n.end_position - greatest(p.floor, g.position)) - CASE WHEN isempty(p.evicted) THEN 0
      ELSE queue_count(p.evicted * int8multirange(int8range(greatest(p.floor, g.position), greatest(p.floor, g.position, n.end_position)))) END), 0)::bigint
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
DROP TABLE queue_expected;
