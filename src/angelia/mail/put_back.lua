-- Ends leases, all in one step, and holds the messages back until a time; only those whose secret is given.
-- KEYS  1  ang:mail:{rid}:ready  mrefs in order; one is here again if its lease ran out
--       2  ang:mail:{rid}:lease  mrefs that are leased or held back, score = until when, Unix ms
--       3  ang:mail:{rid}:tries  mref -> "score:attempts:first leased, Unix ms:secret of the lease"
-- ARGV  1  until when  2  1 if these leases do not count as attempts
--       3  topic of the wake-up, so that a waiting poll looks when they come back; empty for none  4  its text
--       5  what is left in the place of the secret: 0 if the recipient had the message, though it does not count
--       6  … mref and secret of each lease
-- Returns how many of the leases were still held.
local ended = 0
for at = 6, #ARGV, 2 do
  local mref = ARGV[at]
  local record = redis.call('HGET', KEYS[3], mref)
  local score, attempts, since, secret = string.match(record or '', '^(%d+):(%d+):(%d+):(%x*)$')
  if secret == ARGV[at + 1] then
    ended = ended + 1
    redis.call('HSET', KEYS[3], mref, score .. ':' .. (tonumber(attempts) - tonumber(ARGV[2])) .. ':' .. since .. ':' .. ARGV[5])
    redis.call('ZREM', KEYS[1], mref)
    redis.call('ZADD', KEYS[2], ARGV[1], mref)
  end
end
if ended > 0 and ARGV[3] ~= '' then
  redis.call('PUBLISH', ARGV[3], ARGV[4])
end
return ended
