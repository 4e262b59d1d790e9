DROP TABLE aicq_messages;
DROP TABLE aicq_rooms;
