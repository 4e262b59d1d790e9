-- Leases the first messages of a queue. Leases that ran out and back-offs that ended take their old place before.
-- KEYS  1  ang:mail:{rid}:ready  mrefs in order
--       2  ang:mail:{rid}:lease  mrefs that are leased or held back, score = until when, Unix ms
--       3  ang:mail:{rid}:tries  mref -> "score:attempts:first leased, Unix ms:secret of the lease"
-- ARGV  1  now, Unix ms  2  until when  3  the last score that is wanted  4  what the names of copies begin with
--       5  secrets of 32 digits, one after the other: one for each message that is wanted
-- Returns {the next time that something comes back, or ''; how many more wait; score of the last one that is leased now, or
--   ''; mrefs that were leased or held back before; mref, attempts, first leased, copy or '', …}.
-- Scores stay text: as numbers Lua would write them with 14 digits only.
local over = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, 1000)
for _, mref in ipairs(over) do
  local record = redis.call('HGET', KEYS[3], mref)
  local score = record and string.match(record, '^(%d+):')
  if score then
    redis.call('ZADD', KEYS[1], 'NX', score, mref)
  end
  redis.call('ZREM', KEYS[2], mref)
end
local answer = {'', 0, '', {}}
local first = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[3], 'WITHSCORES', 'LIMIT', 0, #ARGV[5] / 32)
if #first > 0 then
  -- All that stood before these and is known here. What the ledger has beside it was left out or forgotten.
  answer[3] = first[#first]
  answer[4] = redis.call('ZRANGE', KEYS[2], 0, -1)
end
for i = 1, #first, 2 do
  local mref, score = first[i], first[i + 1]
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
  local secret = string.sub(ARGV[5], 16 * i - 15, 16 * i + 16)
  redis.call('HSET', KEYS[3], mref, score .. ':' .. attempts .. ':' .. since .. ':' .. secret)
  redis.call('ZREM', KEYS[1], mref)
  redis.call('ZADD', KEYS[2], ARGV[2], mref)
  answer[#answer + 1] = mref
  answer[#answer + 1] = attempts
  answer[#answer + 1] = since
  answer[#answer + 1] = redis.call('GET', ARGV[4] .. mref) or ''
end
answer[2] = redis.call('ZCOUNT', KEYS[1], '-inf', ARGV[3])
answer[1] = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or ''
return answer
