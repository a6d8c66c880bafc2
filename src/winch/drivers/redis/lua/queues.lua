-- queues: the live jobs of each queue, and what is set for it.
-- A:      look (how many ready jobs are asked for their age)
-- Return: {{queue, ready, scheduled, retrying, blocked, oldest ready moment or -1, paused}, claims, sessions}
-- Keys:   queues, ready, gated, tenanted, scheduled, retrying, blocked, paused, env, st, run, alive, sess
-- flags:  no-writes
-- parts:
local names, out = {}, {}
for _, queue in ipairs(call('SMEMBERS', K.queues)) do names[queue] = true end
for _, queue in ipairs(call('HKEYS', K.paused)) do names[queue] = true end
for queue in pairs(names) do
  local ready, oldest = 0, nil
  for _, key in ipairs({K.ready(queue), K.gated(queue), K.tenanted(queue)}) do
    local ids = call('ZRANGE', key, 0, A.look - 1)
    local envelopes, states = fetch('HMGET', K.env, ids), fetch('HMGET', K.st, ids)
    for i = 1, #ids do
      local run_at = states[i] and read(states[i]).t or read(envelopes[i])
      if not oldest or run_at < oldest then oldest = run_at end
    end
    ready = ready + call('ZCARD', key)
  end
  out[#out + 1] = {
    queue, ready, call('ZCARD', K.scheduled(queue)), call('ZCARD', K.retrying(queue)),
    call('ZCARD', K.blocked(queue)), oldest or -1, call('HGET', K.paused, queue),
  }
end
return {out, call('HVALS', K.run), fetch('HMGET', K.sess, call('ZRANGE', K.alive, 0, -1))}
