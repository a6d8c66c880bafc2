-- rescore: ready jobs of a queue take the places that its order gives them; some at a time. Those with a tenant last.
-- A:      now; queue, set (ready, gated or tenanted), cursor
-- Return: the next cursor, 0 at the end
-- Keys:   strict, unsorted, ready, gated, tenanted, line, tenants, fair, gate, env, st, run
-- flags:
-- parts:  put record
local sets = {ready = K.ready(A.queue), gated = K.gated(A.queue), tenanted = K.tenanted(A.queue)}
local found = call('ZSCAN', sets[A.set], A.cursor, 'COUNT', 500)
for i = 1, #found[2], 2 do
  local j = load(found[2][i])
  if j and j.env[PRIORITY] ~= 0 then stand(j.id, j.env, sort_key(j)) end
end
if A.set == 'tenanted' and found[1] == '0' then call('SREM', K.unsorted, A.queue) end
return found[1]
