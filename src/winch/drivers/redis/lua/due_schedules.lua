-- due_schedules: those that want a tick, the longest due first.
-- A:      now; limit
-- Return: {now, when the next of the others is due or -1, then as schedules}
-- Keys:   sched_due, sched, declared
-- flags:  no-writes
-- parts:  schedule
local upto = string.format('%d', now)
local later = call('ZRANGEBYSCORE', K.sched_due, '(' .. upto, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local out = {now, later[2] and tonumber(later[2]) or -1}
for _, name in ipairs(call('ZRANGEBYSCORE', K.sched_due, '-inf', upto, 'LIMIT', 0, A.limit)) do
  local definition, _, count = declared_last(name)
  out[#out + 1] = {name, call('HGET', K.sched, name), definition, count}
end
return out
