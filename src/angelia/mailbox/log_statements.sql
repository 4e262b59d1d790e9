-- Statements of a group's own database (log_schema.sql).

-- log_progress.py

-- name: log_received
SELECT sender, confirmed FROM log_received ORDER BY sender

-- name: log_received_of
SELECT confirmed FROM log_received WHERE sender = ?

-- name: put_log_received
INSERT INTO log_received (sender, confirmed) VALUES (?, ?)
ON CONFLICT (sender) DO UPDATE SET confirmed = excluded.confirmed

-- name: log_ranges
SELECT sender, first, last FROM log_ranges ORDER BY sender, first

-- name: log_ranges_of
SELECT first, last FROM log_ranges WHERE sender = ? ORDER BY first

-- name: drop_log_ranges
DELETE FROM log_ranges WHERE sender = ?

-- name: add_log_range
INSERT INTO log_ranges (sender, first, last) VALUES (?, ?, ?)


-- log_replica.py

-- name: add_log_own
INSERT INTO log_own (seq, level, ciphertext, manifest, watermark) VALUES (?, ?, ?, ?, ?)

-- name: log_own
SELECT seq, level, ciphertext, manifest, watermark FROM log_own WHERE seq = ?

-- name: log_queued
SELECT seq, level, ciphertext, manifest, watermark FROM log_own WHERE level = 0 AND seq > ? ORDER BY seq LIMIT ?

-- name: log_updates
SELECT seq, level, ciphertext, manifest, watermark FROM log_own WHERE level = 0 ORDER BY seq

-- name: drop_all_log_own
DELETE FROM log_own

-- name: drop_completions
DELETE FROM log_completions

-- name: drop_all_completed_by
DELETE FROM log_completed_by

-- name: log_queued_snapshots
SELECT seq, level, ciphertext, manifest, watermark FROM log_own WHERE level > 0 ORDER BY seq

-- name: log_waiting
SELECT seq FROM log_own

-- name: drop_log_own
DELETE FROM log_own WHERE seq = ?

-- name: log_snapshots
SELECT sender, seq, level, watermark FROM log_snapshots ORDER BY sender, seq

-- name: put_log_snapshot
INSERT INTO log_snapshots (sender, seq, level, watermark) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: drop_log_snapshot
DELETE FROM log_snapshots WHERE sender = ? AND seq = ?

-- name: put_completion
INSERT INTO log_completions (level, seq, document, made_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: completions
SELECT level, seq, document FROM log_completions ORDER BY level, seq

-- name: completed_by
SELECT node FROM log_completed_by WHERE level = ? AND seq = ?

-- name: put_completed_by
INSERT INTO log_completed_by (level, seq, node) VALUES (?, ?, ?) ON CONFLICT DO NOTHING

-- name: drop_completion
DELETE FROM log_completions WHERE level = ? AND seq = ?

-- name: drop_completed_by
DELETE FROM log_completed_by WHERE level = ? AND seq = ?


-- log_journal.py

-- name: journal_prepare
CREATE TABLE IF NOT EXISTS journal (
  place INTEGER PRIMARY KEY, sender BLOB NOT NULL, seq INTEGER NOT NULL, written_at INTEGER NOT NULL,
  body BLOB NOT NULL, UNIQUE (sender, seq)
)

-- name: add_journal
INSERT INTO journal (sender, seq, written_at, body) VALUES (?, ?, ?, ?) ON CONFLICT (sender, seq) DO NOTHING

-- name: journal
SELECT place, sender, seq, written_at, body FROM journal WHERE place > ? ORDER BY place LIMIT ?

-- name: journal_end
SELECT place, sender, seq, written_at, body FROM
(SELECT * FROM journal ORDER BY place DESC LIMIT ?) ORDER BY place

-- name: journal_all
SELECT sender, seq, written_at, body FROM journal ORDER BY sender, seq
