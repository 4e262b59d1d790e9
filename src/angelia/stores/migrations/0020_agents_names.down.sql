DROP INDEX idx_agents_name;
ALTER TABLE agents DROP COLUMN updated_at;
