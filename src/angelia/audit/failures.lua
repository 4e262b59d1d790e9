-- Counts a failure of one source, so that no source can fill the ledger with failures.
-- KEYS  1  ang:fail:<minute>   "kind source" -> failures in that minute, "* source" -> all of its failures
--       2  ang:fail:h:<hour>   "kind source" -> failures in that hour
-- ARGV  1  "kind source"  2  "* source"
-- Returns {all failures of the source in the minute, failures of this kind in the hour}.
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
local minute = redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
local hour = redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
if minute == 1 then
  redis.call('EXPIRE', KEYS[1], 600)
end
if hour == 1 then
  redis.call('EXPIRE', KEYS[2], 7200)
end
return {minute, hour}
