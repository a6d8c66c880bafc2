-- due: the first jobs that are due. What a promote over several parts is planned by.
-- A:      now; limit
-- Return: moments, earliest first
-- Keys:   queues, scheduled, retrying
-- flags:  no-writes
-- parts:
local due, upto = {}, string.format('%d', now)
for _, queue in ipairs(call('SMEMBERS', K.queues)) do
  for _, state in ipairs({'scheduled', 'retrying'}) do
    local found = call('ZRANGEBYSCORE', K[state](queue), '-inf', upto, 'WITHSCORES', 'LIMIT', 0, A.limit)
    for i = 2, #found, 2 do due[#due + 1] = tonumber(found[i]) end
  end
end
table.sort(due)
local first = {}
for i = 1, math.min(#due, A.limit) do first[i] = due[i] end
return first
