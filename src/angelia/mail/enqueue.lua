-- Puts messages into their recipient's queue, unless they are there or leased.
-- KEYS  1  ang:mail:{rid}:ready       mrefs, score = (3 - priority) * 2^48 + the ledger's number
--       2  ang:mail:{rid}:lease       mrefs that are leased or held back, score = until when, Unix ms
--       3… ang:mail:{rid}:env:<mref>  a copy of each envelope
-- ARGV  1  topic of the wake-up  2  its text
--       3… mref, score, the envelope (or empty for no copy), life of the copy in ms; of each message
-- Returns how many are new there.
local new = 0
for i = 3, #KEYS do
  local at = 3 + (i - 3) * 4
  local mref = ARGV[at]
  if not redis.call('ZSCORE', KEYS[2], mref) then
    new = new + redis.call('ZADD', KEYS[1], 'NX', ARGV[at + 1], mref)
    if #ARGV[at + 2] > 0 then
      redis.call('SET', KEYS[i], ARGV[at + 2], 'PX', ARGV[at + 3])
    end
  end
end
if new > 0 then
  redis.call('PUBLISH', ARGV[1], ARGV[2])
end
return new
