-- rules_begun: the rules of queues that were begun and not ended.
-- A:      –
-- Return: {queue, number, concurrency or 0, 1 where strict, …}
-- Keys:   ruling
-- flags:  no-writes
-- parts:
local out, all = {}, call('HGETALL', K.ruling)
for i = 1, #all, 2 do
  local rule = read(all[i + 1])
  out[#out + 1], out[#out + 2], out[#out + 3], out[#out + 4] = all[i], rule[1], rule[2] or 0, rule[3] and 1 or 0
end
return out
