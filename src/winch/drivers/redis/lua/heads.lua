-- heads: how many ready jobs queues have, and the first of them. What a claim over several parts is planned by.
-- A:      queues, count; gated: whether it matters that there are jobs with gates or a tenant
-- Return: for each queue: {number of plain jobs, {id, sort key, …}, number of others}
-- Keys:   ready, gated, tenanted, paused
-- flags:  no-writes
-- parts:
local out = {}
for i, queue in ipairs(A.queues) do
  local key, first, others = K.ready(queue), {}, 0
  local number = call('ZCARD', key)
  if A.gated then others = call('ZCARD', K.gated(queue)) + call('ZCARD', K.tenanted(queue)) end
  if number + others > 0 and call('HEXISTS', K.paused, queue) == 1 then number, others = 0, 0 end
  if number > 0 and A.count > 0 then first = call('ZRANGE', key, 0, A.count - 1, 'WITHSCORES') end
  out[i] = {number, first, others}
end
return out
