-- Ends a lease and leaves the message alone until a time; only for whoever has the lease.
-- KEYS  1  ang:mail:{rid}:ready  mrefs in order; it is here again if the lease ran out
--       2  ang:mail:{rid}:lease  mrefs that are handed out or left alone, score = until when, Unix ms
--       3  ang:mail:{rid}:tries  mref -> "score:attempts:first leased, Unix ms:secret of the lease"
-- ARGV  1  mref  2  secret of the lease  3  until when  4  1 if this lease does not count as an attempt
--       5  topic of the wake-up: whoever waits looks when it comes back; empty for none
--       6  what is left in the place of the secret: 0 if the recipient had the message, though it does not count
-- Returns 1, or 0 when the lease was lost.
local record = redis.call('HGET', KEYS[3], ARGV[1])
local score, attempts, since, secret = string.match(record or '', '^(%d+):(%d+):(%d+):(%x*)$')
if secret ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[3], ARGV[1], score .. ':' .. (tonumber(attempts) - tonumber(ARGV[4])) .. ':' .. since .. ':' .. ARGV[6])
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
if ARGV[5] ~= '' then
  redis.call('PUBLISH', ARGV[5], '')
end
return 1
