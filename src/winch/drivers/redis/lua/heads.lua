-- heads: how many ready jobs queues have, and the first of them. What a claim over several parts is planned by.
-- A:      queues, count; gated: whether it matters that there are jobs with gates or a tenant
-- Return: for each queue: {number of plain jobs, {id, sort key, …}, number of others, how many more may run or -1, 1 where
--         its order is strict}
-- Keys:   ready, gated, tenanted, paused, caps, strict, used
-- flags:  no-writes
-- parts:
local out, has_rules = {}, call('EXISTS', K.caps, K.strict) > 0
for i, queue in ipairs(A.queues) do
  local key, first, others = K.ready(queue), {}, 0
  local number = call('ZCARD', key)
  if A.gated then others = call('ZCARD', K.gated(queue)) + call('ZCARD', K.tenanted(queue)) end
  if number + others > 0 and call('HEXISTS', K.paused, queue) == 1 then number, others = 0, 0 end
  if number > 0 and A.count > 0 then first = call('ZRANGE', key, 0, A.count - 1, 'WITHSCORES') end
  local room, is_strict = -1, 0
  if has_rules then
    local most = tonumber(call('HGET', K.caps, queue) or nil)
    if most then room = math.max(0, most - tonumber(call('HGET', K.used, 'queue:' .. queue) or 0)) end
    is_strict = call('SISMEMBER', K.strict, queue)
  end
  out[i] = {number, first, others, room, is_strict}
end
return out
