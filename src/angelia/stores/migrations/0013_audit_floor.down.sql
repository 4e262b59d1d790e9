DROP TABLE audit_floor;
