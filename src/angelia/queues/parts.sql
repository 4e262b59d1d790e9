-- part: cursor
-- How far a consumer group g is in a partition p.
SELECT k.* FROM queue_cursors AS k WHERE k.partition_no = p.partition_no AND k.group_no = g.group_no ORDER BY k.version DESC LIMIT 1

-- part: newest
-- The end of a partition p.
SELECT c.end_position, c.created_at FROM queue_chunks AS c WHERE c.partition_no = p.partition_no ORDER BY c.end_position DESC LIMIT 1

-- part: messages
-- The messages of a partition p as sets of positions at the time $1, one set for each status. A consumer group is done with a message
-- that is settled, lies before its cursor, or was put back for another group.
CROSS JOIN LATERAL (
  SELECT coalesce(range_intersect_agg(
      int8multirange(int8range(0, coalesce(s.position, 0))) + coalesce(s.settled, '{}') + coalesce(b.others, '{}')), '{}') AS done,
    coalesce(range_agg(int8multirange(int8range(s.position, greatest(s.position, s.lease_end))) - s.settled - s.passed) FILTER (WHERE s.lease_until > $1), '{}') AS leased,
    count(*) FILTER (WHERE s.attempts > 0) AS failed
  FROM queue_groups AS g
  LEFT JOIN LATERAL ({cursor}) AS s ON true
  LEFT JOIN LATERAL (
    SELECT range_agg(int8range(b.position, b.position + 1)) AS others FROM queue_put_back AS b
    WHERE b.partition_no = p.partition_no AND b.group_no <> g.group_no
  ) AS b ON true
  WHERE g.queue_no = p.queue_no
) AS r
LEFT JOIN LATERAL ({newest}) AS n ON true
CROSS JOIN LATERAL (
  SELECT coalesce(range_agg(int8range(d.position, d.position + 1)), '{}') AS dead
  FROM queue_dead_letters AS d WHERE d.partition_no = p.partition_no
) AS d
CROSS JOIN LATERAL (
  SELECT int8multirange(int8range(p.floor, greatest(p.floor, n.end_position))) - p.removed AS kept OFFSET 0
) AS k
CROSS JOIN LATERAL (SELECT k.kept * p.evicted AS evicted, k.kept * r.leased - p.evicted AS processing OFFSET 0) AS m1
CROSS JOIN LATERAL (SELECT k.kept * d.dead - m1.evicted - m1.processing AS dead OFFSET 0) AS m2
CROSS JOIN LATERAL (SELECT k.kept * r.done - m1.evicted - m1.processing - m2.dead AS completed OFFSET 0) AS m3

-- part: figures
-- How many messages of a partition p have which status; `failed` are consumer groups that try a message again.
{messages}
CROSS JOIN LATERAL (
  SELECT queue_count(k.kept) AS total, queue_count(m1.processing) AS processing, queue_count(m3.completed) AS completed, r.failed,
    queue_count(m2.dead) AS dead_letter, queue_count(m1.evicted) AS evicted
  OFFSET 0
) AS f

-- part: pending
(f.total - f.processing - f.completed - f.dead_letter - f.evicted)

-- part: open
-- The messages of a partition p that a consumer group g, with its cursor s, has still to consume: those that wait and those under a lease.
LEFT JOIN LATERAL ({cursor}) AS s ON true
LEFT JOIN LATERAL ({newest}) AS n ON true
LEFT JOIN LATERAL (
  SELECT range_agg(int8range(b.position, b.position + 1)) AS others FROM queue_put_back AS b WHERE b.partition_no = p.partition_no AND b.group_no <> g.group_no
) AS b ON true
CROSS JOIN LATERAL (
  SELECT int8multirange(int8range(greatest(p.floor, s.position), greatest(p.floor, s.position, n.end_position))) - p.removed - p.evicted
    - coalesce(s.settled, '{}') - coalesce(b.others, '{}') AS messages OFFSET 0
) AS o

-- part: oldest_open
-- When the first of them was pushed.
LEFT JOIN LATERAL (
  SELECT c.created_at FROM queue_chunks AS c
  WHERE c.partition_no = p.partition_no AND c.end_position > lower(o.messages) AND c.stored_at >= coalesce(s.read_at, p.floor_at, '-infinity')
  ORDER BY c.end_position LIMIT 1
) AS oldest ON NOT isempty(o.messages)
