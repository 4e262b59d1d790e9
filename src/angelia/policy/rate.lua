-- Counts acts of one subject under one rule: as many as the window has room for; the others are refused.
-- KEYS  1  ang:rl:{tag}:policy:<rule>   sorted set of the acts in the window, score = Unix ms; tag = the subject's hash
-- ARGV  1  now, Unix ms    2  limit    3  window, ms    4  how many acts    5  unique beginning of their members
-- Returns {how many were counted, when the window has room for the next one, in Unix ms}.
local now, limit, window, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
local used = redis.call('ZCARD', KEYS[1])
local counted = math.max(0, math.min(wanted, limit - used))
for number = 1, counted do
  redis.call('ZADD', KEYS[1], now, ARGV[5] .. ':' .. number)
end
if counted > 0 then
  redis.call('PEXPIRE', KEYS[1], window)
end
used = used + counted
local free = now
if used >= limit then
  free = tonumber(redis.call('ZRANGE', KEYS[1], used - limit, used - limit, 'WITHSCORES')[2]) + window
end
return {counted, free}
