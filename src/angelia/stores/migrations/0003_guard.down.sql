DROP TABLE blocked_addresses;
DROP TABLE tokens;
