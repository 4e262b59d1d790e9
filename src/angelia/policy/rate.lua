-- Counts an act of one subject under one rule, if the window has room for it.
-- KEYS  1  ang:rl:{tag}:policy:<rule>   sorted set of the acts in the window, score = Unix ms; tag = the subject's hash
-- ARGV  1  now, Unix ms    2  limit    3  window, ms    4  the act's unique member
-- Returns 0 if it was counted, else when the window has room for it, in Unix ms.
local now, limit, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
local used = redis.call('ZCARD', KEYS[1])
if used >= limit then
  return tonumber(redis.call('ZRANGE', KEYS[1], used - limit, used - limit, 'WITHSCORES')[2]) + window
end
redis.call('ZADD', KEYS[1], now, ARGV[4])
redis.call('PEXPIRE', KEYS[1], window)
return 0
