DROP INDEX idx_envelopes_order;
