-- Stores the copy of an agent's bundle, unless there is a newer one: a slow reader must not undo a writer.
-- KEYS[1]  ang:pk:{rid}   hash: stamp, answer
-- ARGV     stamp (rises with every change), answer (JSON), life in seconds
local held = redis.call('HGET', KEYS[1], 'stamp')
if held and tonumber(held) > tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'stamp', ARGV[1], 'answer', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
