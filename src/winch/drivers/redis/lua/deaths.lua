-- deaths: the tasks that have dead jobs, or the dead jobs of one task, newest first.
-- A:      task (nil: the tasks), start, count
-- Return: tasks; or ids with envelopes, states and whether a job still waits for them
-- Keys:   died, deaths, env, st, ids, waiters
-- flags:  no-writes
-- parts:  put record awaited
if not A.task then return call('ZRANGE', K.died, 0, -1) end
local ids = call('ZREVRANGE', K.deaths(A.task), A.start, A.start + A.count - 1)
local envelopes, awaited = fetch('HMGET', K.env, ids), {}
for i, e in ipairs(envelopes) do
  local _, env = read_envelope(e or '')
  local headers = env and env[HEADERS]
  awaited[i] = headers and still_awaited(headers) and 1 or 0
end
return {ids, envelopes, fetch('HMGET', K.st, ids), awaited}
