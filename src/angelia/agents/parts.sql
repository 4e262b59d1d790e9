-- Parts of which the statements of other slices are made.

-- part: blocked
-- Whether the recipient of a message `w` (sender, recipient: handles) has blocked its sender: two look-ups by handle and one
-- in the block list. The LIMIT enforces this plan: as EXISTS or as a join, the planner would scan all block lists.
SELECT coalesce((
    SELECT true FROM blocks
    WHERE agent_id = (SELECT id FROM agents WHERE handle = w.recipient)
      AND blocked_id = (SELECT id FROM agents WHERE handle = w.sender)
    LIMIT 1
  ), false) AS blocked
