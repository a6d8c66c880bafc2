-- counts: how many jobs are in each state. No set is walked.
-- A:      –
-- Return: {ready, scheduled, retrying, blocked, running, cancelled, dead, all}
-- Keys:   queues, ready, gated, tenanted, scheduled, retrying, blocked, run, cancelled, dead, env
-- flags:  no-writes
-- parts:
local ready, scheduled, retrying, blocked = 0, 0, 0, 0
for _, queue in ipairs(call('SMEMBERS', K.queues)) do
  ready = ready + call('ZCARD', K.ready(queue)) + call('ZCARD', K.gated(queue))
    + call('ZCARD', K.tenanted(queue))
  scheduled = scheduled + call('ZCARD', K.scheduled(queue))
  retrying = retrying + call('ZCARD', K.retrying(queue))
  blocked = blocked + call('ZCARD', K.blocked(queue))
end
return {
  ready, scheduled, retrying, blocked, call('HLEN', K.run), call('ZCARD', K.cancelled),
  call('ZCARD', K.dead), call('HLEN', K.env),
}
