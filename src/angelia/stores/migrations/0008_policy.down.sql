DROP TABLE policy_version;
DROP TABLE policies;
