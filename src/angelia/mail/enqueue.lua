-- Puts a message into its recipient's queue, unless it is there or leased.
-- KEYS  1  ang:mail:{rid}:ready       mrefs, score = (3 - priority) * 2^48 + the ledger's number
--       2  ang:mail:{rid}:lease       mrefs that are leased or held back, score = until when, Unix ms
--       3  ang:mail:{rid}:env:<mref>  a copy of the envelope
-- ARGV  1  mref  2  score  3  the envelope, or empty for no copy  4  life of the copy, ms
--       5  topic of the wake-up  6  its text
-- Returns 1 when it is new there, 0 when it was there already.
if redis.call('ZSCORE', KEYS[2], ARGV[1]) then
  return 0
end
local new = redis.call('ZADD', KEYS[1], 'NX', ARGV[2], ARGV[1])
if #ARGV[3] > 0 then
  redis.call('SET', KEYS[3], ARGV[3], 'PX', ARGV[4])
end
if new == 1 then
  redis.call('PUBLISH', ARGV[5], ARGV[6])
end
return new
