DROP TABLE channel_rosters;
ALTER TABLE channels DROP COLUMN roster_version;
