DROP TABLE channel_remains;
DROP TABLE channel_messages;
DROP TABLE channel_subscriptions;
DROP TABLE channel_allowlist;
DROP TABLE channels;
