-- name: walk
SELECT partition_no, hash, position, floor FROM queue_walks WHERE name = $1

-- name: set_walk
INSERT INTO queue_walks (name, partition_no, hash, position, floor) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE SET
  partition_no = excluded.partition_no, hash = excluded.hash, position = excluded.position, floor = excluded.floor
