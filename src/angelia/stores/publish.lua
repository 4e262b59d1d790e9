-- Publishes a message on a topic. No keys.
-- ARGV  1  topic  2  message
return redis.call('PUBLISH', ARGV[1], ARGV[2])
