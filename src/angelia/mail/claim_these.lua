-- Leases messages by name: the first ones that are neither leased nor held back.
-- KEYS  1  ang:mail:{rid}:ready  mrefs in order
--       2  ang:mail:{rid}:lease  mrefs that are leased or held back, score = until when, Unix ms
--       3  ang:mail:{rid}:tries  mref -> "score:attempts:first leased, Unix ms:secret of the lease"
-- ARGV  1  now, Unix ms  2  until when  3  what the names of copies begin with  4  how many are wanted
--       5… mref, score and secret of each message
-- Returns {mref, attempts, first leased, copy or '', …} of those that are leased now.
local answer = {}
for i = 5, #ARGV, 3 do
  if #answer >= 4 * tonumber(ARGV[4]) then
    break
  end
  local mref, score, secret = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local held = redis.call('ZSCORE', KEYS[2], mref)
  if not held or tonumber(held) <= tonumber(ARGV[1]) then
    local attempts, since = 0, ARGV[1]
    local record = redis.call('HGET', KEYS[3], mref)
    if record then
      local tried, at = string.match(record, '^%d+:(%d+):(%d+):')
      attempts = tonumber(tried)
      if attempts > 0 then
        since = at
      end
    end
    attempts = attempts + 1
    redis.call('HSET', KEYS[3], mref, score .. ':' .. attempts .. ':' .. since .. ':' .. secret)
    redis.call('ZREM', KEYS[1], mref)
    redis.call('ZADD', KEYS[2], ARGV[2], mref)
    answer[#answer + 1] = mref
    answer[#answer + 1] = attempts
    answer[#answer + 1] = since
    answer[#answer + 1] = redis.call('GET', ARGV[3] .. mref) or ''
  end
end
return answer
