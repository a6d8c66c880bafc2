-- rescore: ready jobs of a queue, and those that wait at gates, take the places that its order gives them; some at a time.
-- Those at gates last.
-- A:      now; queue, set (ready, gated, tenanted or blocked), cursor
-- Return: the next cursor, 0 at the end
-- Keys:   strict, unsorted, ready, gated, tenanted, blocked, stopped, line, tenants, fair, gate, env, st, run
-- flags:
-- parts:  put record
local sets = {ready = K.ready(A.queue), gated = K.gated(A.queue), tenanted = K.tenanted(A.queue)}
sets.blocked = K.blocked(A.queue)
local found = call('ZSCAN', sets[A.set], A.cursor, 'COUNT', 500)
for i = 1, #found[2], 2 do
  local j = load(found[2][i])
  if j and j.env[PRIORITY] ~= 0 then
    if j.s == 'ready' then
      stand(j.id, j.env, sort_key(j))
    elseif j.G and string.sub(j.G, 1, 5) ~= 'fifo:' then  -- members of a FIFO key stand by their numbers
      call('ZADD', K.stopped(j.G), 'XX', sort_key(j), j.id)
    end
  end
end
if A.set == 'blocked' and found[1] == '0' then call('SREM', K.unsorted, A.queue) end
return found[1]
