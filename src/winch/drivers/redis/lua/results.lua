-- results: how jobs stand, and their results.
-- A:      ids
-- Return: {task, state, result or false} for each, one after the other; a task that is false: no such job
-- Keys:   env, st, run
-- flags:  no-writes
-- parts:  record
local found, at = {}, 0
local envs, sts, runs = fetch('HMGET', K.env, A.ids), fetch('HMGET', K.st, A.ids), fetch('HMGET', K.run, A.ids)
for i, id in ipairs(A.ids) do
  local j = envs[i] and open(id, envs[i], sts[i], runs[i])
  found[at + 1] = j and j.env[1] or false
  found[at + 2] = j and j.s or false
  found[at + 3] = j and j.R or false
  at = at + 3
end
return found
