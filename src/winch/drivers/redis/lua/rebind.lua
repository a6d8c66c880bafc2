-- rebind: waiting jobs stay what they are, and carry other options and another priority, where both are what the
-- caller has read.
-- A:      now; changes: {id, options, priority, to_options, to_priority}, false for no options
-- Return: {1 where it took, 0 else}
-- Keys:   env, st, run, ready, gated, tenanted, line, stopped, members
-- flags:
-- parts:  put record
local took = {}
for place, change in ipairs(A.changes) do
  local id, options, priority, to_options, to_priority = unpack(change)
  local j = load(id)
  took[place] = 0
  if j and j.s ~= 'running' and not FINAL[j.s] and j.env[OPTIONS] == options and j.env[PRIORITY] == priority then
    if j.s == 'ready' then stand_down(id, j.env) end
    j.env[OPTIONS], j.env[PRIORITY] = to_options, to_priority
    save_env(j)
    if is_gated(j.env) then join(id, j.env, j.N or j.created) end
    if j.s == 'ready' then
      stand(id, j.env, sort_key(j))
    elseif j.G and string.sub(j.G, 1, 5) ~= 'fifo:' then
      call('ZADD', K.stopped(j.G), sort_key(j), id)
    end
    took[place] = 1
  end
end
done()
return took
