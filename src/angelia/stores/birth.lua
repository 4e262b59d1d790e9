-- Sets the birth mark, unless this very server process has one.
-- KEYS  1  ang:birth   "<run id>:<Unix ms>"; nonces used before that time may be lost
-- ARGV  1  run id of the server that the caller is connected to
--       2  now, Unix ms
-- Returns the mark.
local mark = redis.call('GET', KEYS[1])
if not mark or string.sub(mark, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':' then
  mark = ARGV[1] .. ':' .. ARGV[2]
  redis.call('SET', KEYS[1], mark)
end
return mark
