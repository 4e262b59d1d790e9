-- Holds back a message that its recipient was never given, so that it can be withdrawn.
-- KEYS  1  ang:mail:{rid}:ready  mrefs in order
--       2  ang:mail:{rid}:lease  mrefs that are leased or held back, score = until when, Unix ms
--       3  ang:mail:{rid}:tries  mref -> "score:attempts:first leased, Unix ms:secret of the lease"
-- ARGV  1  mref  2  its score  3  now, Unix ms  4  until when it is held back
-- Returns 1, or 0 when it was leased before.
local record = redis.call('HGET', KEYS[3], ARGV[1])
if record then
  local attempts, secret = string.match(record, '^%d+:(%d+):%d+:(%x*)$')
  if tonumber(attempts) > 0 or secret ~= '' then
    return 0
  end
end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2] .. ':0:' .. ARGV[3] .. ':')
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
return 1
