-- results: how jobs stand, and their results.
-- A:      ids
-- Return: {task, state, result or false} for each, one after the other; a task that is false: no such job
-- Keys:   env, st, run
-- flags:  no-writes
-- parts:  record

-- The task of an envelope: it stands behind the moment (nine bytes) and the length of the rest, which is not
-- read. Nil where it does not look like that; then all of it is.
local function task_of(e)
  local moment, rest, tag = string.byte(e, 1), string.byte(e, 10, 11)
  if (moment ~= 0xcf and moment ~= 0xd3) or rest ~= 0x90 + KEPT then return nil end
  if tag >= 0xa0 and tag < 0xc0 then return string.sub(e, 12, 11 + tag - 0xa0) end
  if tag == 0xd9 then return string.sub(e, 13, 12 + string.byte(e, 12)) end
  return nil
end

local found, at = {}, 0
local envs, sts, runs = fetch('HMGET', K.env, A.ids), fetch('HMGET', K.st, A.ids), fetch('HMGET', K.run, A.ids)
for i, id in ipairs(A.ids) do
  local e, s, r = envs[i], sts[i], runs[i]
  local task = e and s and not r and task_of(e)
  local j = task and read(s) or e and open(id, e, s, r)
  found[at + 1] = j and (task or j.env[1]) or false
  found[at + 2] = j and (j.s or 'ready') or false
  found[at + 3] = j and j.R or false
  at = at + 3
end
return found
