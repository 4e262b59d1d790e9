-- Uses up a nonce and counts a request of an agent, atomically. Runs after the signature was verified.
-- KEYS  1  ang:birth                  "<run id>:<Unix ms>": since when this memory is complete
--       2  ang:nonce:{subject}:<nonce>
--       3  ang:rl:{subject}:<rule>    sorted set of the requests in the window, score = Unix ms
-- ARGV  1  now, Unix ms     2  run id of the server     3  the time of a birth mark that is made now, Unix ms
--       4  when the request was signed, Unix ms         5  life of a nonce, ms
--       6  limit (0 = none) 7  window, ms               8  unique member
-- Returns {verdict, remaining, reset in Unix ms}; verdict 0 allowed, 1 limited, 2 nonce used, 3 signed before the birth mark.
local now, limit, window = tonumber(ARGV[1]), tonumber(ARGV[6]), tonumber(ARGV[7])
local mark = redis.call('GET', KEYS[1])
if not mark then
  mark = ARGV[2] .. ':' .. ARGV[3]
  redis.call('SET', KEYS[1], mark)
end
if tonumber(ARGV[4]) <= tonumber(string.match(mark, ':(%d+)$')) then
  return {3, 0, 0}
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  return {2, 0, 0}
end
local remaining, reset = 0, now
if limit > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - window)
  local used = redis.call('ZCARD', KEYS[3])
  if used >= limit then
    return {1, 0, tonumber(redis.call('ZRANGE', KEYS[3], used - limit, used - limit, 'WITHSCORES')[2]) + window}
  end
  redis.call('ZADD', KEYS[3], now, ARGV[8])
  redis.call('PEXPIRE', KEYS[3], window)
  used = used + 1
  remaining = limit - used
  if used >= limit then
    reset = tonumber(redis.call('ZRANGE', KEYS[3], used - limit, used - limit, 'WITHSCORES')[2]) + window
  end
end
redis.call('SET', KEYS[2], '1', 'PX', ARGV[5])
return {0, remaining, reset}
