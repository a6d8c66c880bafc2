-- tenants: the tenants of each queue that have ready jobs, and how many.
-- A:      look (how many tenants of a queue are looked at)
-- Return: {queue, tenant, ready, ready moment of the first in line or -1} for each
-- Keys:   queues, tenants, line, env, st
-- flags:  no-writes
-- parts:
local out = {}
for _, queue in ipairs(call('SMEMBERS', K.queues)) do
  for _, tenant in ipairs(call('ZRANGE', K.tenants(queue), 0, A.look - 1)) do
    local key = K.line(queue, tenant)
    local first, oldest = call('ZRANGE', key, 0, 99), -1
    local envelopes, states = fetch('HMGET', K.env, first), fetch('HMGET', K.st, first)
    for i = 1, #first do
      local run_at = states[i] and read(states[i]).t or read(envelopes[i])
      if oldest < 0 or run_at < oldest then oldest = run_at end
    end
    out[#out + 1] = {queue, tenant, call('ZCARD', key), oldest}
  end
end
return out
