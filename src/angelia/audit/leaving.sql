-- name: entries_before
-- Entries are sealed about in the order of their times, so those that are due stand first; so many are looked at.
SELECT count(*) FROM (SELECT occurred_at FROM audit_chain ORDER BY position LIMIT $2) AS first WHERE occurred_at < $1
