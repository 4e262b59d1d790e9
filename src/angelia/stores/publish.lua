-- Says something on a topic. No keys.
-- ARGV  1  topic  2  word
return redis.call('PUBLISH', ARGV[1], ARGV[2])
