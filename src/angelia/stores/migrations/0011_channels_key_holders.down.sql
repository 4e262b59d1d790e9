DROP TABLE channel_epochs;
DROP INDEX idx_channels_rules;
ALTER TABLE channels DROP COLUMN rules_version;
ALTER TABLE channel_subscriptions DROP COLUMN confirmed_at;
UPDATE channel_subscriptions SET status = 'deleted' WHERE status = 'publishing';
ALTER TABLE channel_subscriptions DROP CONSTRAINT channel_subscriptions_status_check;
ALTER TABLE channel_subscriptions ADD CONSTRAINT channel_subscriptions_status_check
  CHECK (status IN ('active', 'paused', 'deleted'));
