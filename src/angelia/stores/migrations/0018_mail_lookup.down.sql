ALTER TABLE envelopes DROP CONSTRAINT envelopes_pkey;
ALTER TABLE envelopes ADD PRIMARY KEY (bucket, recipient_nhi, mref);
