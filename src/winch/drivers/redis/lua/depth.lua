-- depth: how many jobs of a queue wait to be run, and since when the first in line does.
-- A:      now; queue
-- Return: {now, count, the moment since when the first in line is ready or -1}
-- Keys:   ready, gated, tenanted, env, st
-- flags:  no-writes
-- parts:
local count, oldest = 0, nil
for _, key in ipairs({K.ready(A.queue), K.gated(A.queue), K.tenanted(A.queue)}) do
  local first = call('ZRANGE', key, 0, 0)[1]
  if first then
    local s = call('HGET', K.st, first)
    local run_at = s and read(s).t or read(call('HGET', K.env, first))
    if not oldest or run_at < oldest then oldest = run_at end
    count = count + call('ZCARD', key)
  end
end
return {now, count, oldest or -1}
