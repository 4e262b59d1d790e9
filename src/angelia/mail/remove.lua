-- Forgets messages that the ledger does not have any more, and says what became of them.
-- KEYS  1  ang:mail:{rid}:ready  mrefs in order
--       2  ang:mail:{rid}:lease  mrefs that are leased or held back
--       3  ang:mail:{rid}:tries  what is remembered of them
-- ARGV  1  what the names of copies begin with  2  topic that says that a message left the queue  3  how many mrefs
--       4… the mrefs, then topics and words
local last = 3 + tonumber(ARGV[3])
for i = 4, last do
  redis.call('ZREM', KEYS[1], ARGV[i])
  redis.call('ZREM', KEYS[2], ARGV[i])
  redis.call('HDEL', KEYS[3], ARGV[i])
  redis.call('DEL', ARGV[1] .. ARGV[i])
end
redis.call('PUBLISH', ARGV[2], '')
for i = last + 1, #ARGV, 2 do
  redis.call('PUBLISH', ARGV[i], ARGV[i + 1])
end
return last - 3
