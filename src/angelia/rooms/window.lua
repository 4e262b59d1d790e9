-- Reserves an amount in a sliding window, if there is room for it.
-- KEYS  1  ang:rooms:{tag}:<what>   sorted set of "<unique>:<amount>", score = Unix ms; tag = the subject's hash
-- ARGV  1  now, Unix ms    2  most in a window    3  window, ms    4  amount    5  unique
-- Returns 0 if there is room, else when there will be, in Unix ms.
local now, most, window, amount = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
local held = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
local used = 0
for at = 1, #held, 2 do
  used = used + tonumber(string.match(held[at], ':(%d+)$'))
end
local over = used + amount - most
for at = 1, #held, 2 do
  if over <= 0 then
    break
  end
  over = over - tonumber(string.match(held[at], ':(%d+)$'))
  if over <= 0 then
    return tonumber(held[at + 1]) + window
  end
end
if over > 0 then
  return now + window
end
redis.call('ZADD', KEYS[1], now, ARGV[5] .. ':' .. ARGV[4])
redis.call('PEXPIRE', KEYS[1], window)
return 0
