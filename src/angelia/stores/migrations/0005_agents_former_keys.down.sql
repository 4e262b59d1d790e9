DROP TABLE agent_former_keys;
ALTER TABLE agents DROP COLUMN handle_fixed;
