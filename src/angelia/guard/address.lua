-- Counts a request against a rate limit, and blocks an address that was refused too often. Runs for an address before the
-- caller is known, again to charge a failed proof, and for an agent whose credential has no nonce.
-- KEYS  1  ang:block:{subject}        exists while the address is blocked
--       2  ang:rl:{subject}:<rule>    sorted set of the requests in the window, score = Unix ms
--       3  ang:viol:{subject}         refusals; lives one hour after the last
-- ARGV  1  now, Unix ms
--       2  limit                3  window, ms     4  charge: 1 counts this request, 0 only checks
--       5  unique member        6  violations that block (0 = never)
--       7  life of the violation counter, ms      8  length of a block, ms
-- What the other processes are told, each a topic, or empty for none, and its text:
--       9, 10   that this request was counted         11, 12  that the address is blocked
-- Returns {verdict, remaining, reset in Unix ms}; verdict 0 allowed, 1 limited, 2 blocked, 3 blocked by this call.
local now, limit, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {2, 0, 0}
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - window)
local used = redis.call('ZCARD', KEYS[2])
if used >= limit then
  local free = tonumber(redis.call('ZRANGE', KEYS[2], used - limit, used - limit, 'WITHSCORES')[2]) + window
  if tonumber(ARGV[6]) > 0 then
    local violations = redis.call('INCR', KEYS[3])
    redis.call('PEXPIRE', KEYS[3], ARGV[7])
    if violations >= tonumber(ARGV[6]) then
      redis.call('SET', KEYS[1], '1', 'PX', ARGV[8])
      redis.call('DEL', KEYS[3])
      redis.call('PUBLISH', ARGV[11], ARGV[12])
      return {3, 0, free}
    end
  end
  return {1, 0, free}
end
if ARGV[4] == '1' then
  redis.call('ZADD', KEYS[2], now, ARGV[5])
  redis.call('PEXPIRE', KEYS[2], window)
  used = used + 1
  if ARGV[9] ~= '' then
    redis.call('PUBLISH', ARGV[9], ARGV[10])
  end
end
local reset = now
if used >= limit then
  reset = tonumber(redis.call('ZRANGE', KEYS[2], used - limit, used - limit, 'WITHSCORES')[2]) + window
end
return {0, limit - used, reset}
