DROP TABLE audit_witnessed;
