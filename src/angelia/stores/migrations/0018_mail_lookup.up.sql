-- mail: a message is looked up by its mref alone. Under the old key, whose first columns are those of its recipient's queue, a
-- plan that was made while the table was small read the whole queue instead. Of indexes that seem equally good, as they do on a
-- small table, the planner takes the newest, so the one that counts a queue is made anew after the key.
-- contract: no statement names a key or an index; those of the release before find their rows by the others.
ALTER TABLE envelopes DROP CONSTRAINT envelopes_pkey;
ALTER TABLE envelopes ADD PRIMARY KEY (mref, bucket);
DROP INDEX idx_envelopes_held;
CREATE INDEX idx_envelopes_held ON envelopes (bucket, recipient_nhi, sender_nhi) INCLUDE (wire_bytes);
