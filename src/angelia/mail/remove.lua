-- Forgets messages that the ledger does not have any more, and says what became of them.
-- KEYS  1  ang:mail:{rid}:ready  mrefs in order
--       2  ang:mail:{rid}:lease  mrefs that are leased or held back
--       3  ang:mail:{rid}:tries  what is remembered of them
-- ARGV  1  what the names of copies begin with  2  how many mrefs  3… the mrefs, then topics and texts of wake-ups
local last = 2 + tonumber(ARGV[2])
for i = 3, last do
  redis.call('ZREM', KEYS[1], ARGV[i])
  redis.call('ZREM', KEYS[2], ARGV[i])
  redis.call('HDEL', KEYS[3], ARGV[i])
  redis.call('DEL', ARGV[1] .. ARGV[i])
end
for i = last + 1, #ARGV, 2 do
  redis.call('PUBLISH', ARGV[i], ARGV[i + 1])
end
return last - 2
