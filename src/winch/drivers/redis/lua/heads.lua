-- heads: how many ready jobs queues have, and the first of them. What a claim over several parts is planned by.
-- A:      queues, count
-- Return: for each queue: {number, {id, sort key, …}}
-- Keys:   ready, paused
-- flags:  no-writes
-- parts:
local out = {}
for i, queue in ipairs(A.queues) do
  local key = K.ready(queue)
  local number = call('ZCARD', key)
  if number > 0 and call('HEXISTS', K.paused, queue) == 1 then number = 0 end
  local first = {}
  if number > 0 and A.count > 0 then first = call('ZRANGE', key, 0, A.count - 1, 'WITHSCORES') end
  out[i] = {number, first}
end
return out
