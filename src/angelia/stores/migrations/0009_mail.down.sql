DROP TABLE mail_marks;
DROP TABLE delivery_receipts;
DROP TABLE sent_ids;
DROP TABLE envelopes;
DROP SEQUENCE envelope_seq;
