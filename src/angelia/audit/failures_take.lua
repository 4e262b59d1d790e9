-- The failures of a minute, of the sources that had more than were recorded one by one.
-- KEYS  1  ang:fail:<minute>   "kind source" -> failures in that minute, "* source" -> all of its failures
-- ARGV  1  how many of a source were recorded one by one
-- Returns {"kind source", failures, …}.
local counts, answer = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #counts, 2 do
  local source = string.match(counts[i], '^[^*]%S* (.*)$')
  if source and tonumber(redis.call('HGET', KEYS[1], '* ' .. source)) > tonumber(ARGV[1]) then
    answer[#answer + 1] = counts[i]
    answer[#answer + 1] = counts[i + 1]
  end
end
return answer
