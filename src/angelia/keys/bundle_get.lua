-- Returns the copy of an agent's bundle, if there is one.
-- KEYS[1]  ang:pk:{rid}   hash: stamp, answer
return redis.call('HGET', KEYS[1], 'answer')
