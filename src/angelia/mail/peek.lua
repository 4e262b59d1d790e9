-- What is remembered of the last leases of messages.
-- KEYS  1  ang:mail:{rid}:lease  mrefs that are leased or held back, score = until when, Unix ms
--       2  ang:mail:{rid}:tries  mref -> "score:attempts:first leased, Unix ms:secret of the lease"
-- ARGV  mrefs
-- Returns {until when or '', record or '', …}.
local answer = {}
for _, mref in ipairs(ARGV) do
  answer[#answer + 1] = redis.call('ZSCORE', KEYS[1], mref) or ''
  answer[#answer + 1] = redis.call('HGET', KEYS[2], mref) or ''
end
return answer
