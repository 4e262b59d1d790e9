-- Publishes that partitions may have messages to deliver, with a number; or only tells the newest number.
-- KEYS  1  ang:queues:news   "<epoch>:<number>" of the newest news; another epoch after the hot tier lost its data
-- ARGV  1  topic; empty: publish nothing    2  tag of the publishing process    3  the news    4  a random epoch
-- Returns "<epoch>:<number>" of the newest news.
local known = redis.call('GET', KEYS[1])
if ARGV[1] == '' and known then
  return known
end
local epoch, number = ARGV[4], 0
if known then
  local found, counted = string.match(known, '^(%x+):(%d+)$')
  epoch, number = found, tonumber(counted) + 1
end
known = epoch .. ':' .. string.format('%d', number)
redis.call('SET', KEYS[1], known)
if ARGV[1] ~= '' then
  redis.call('PUBLISH', ARGV[1], ARGV[2] .. known .. ' ' .. ARGV[3])
end
return known
