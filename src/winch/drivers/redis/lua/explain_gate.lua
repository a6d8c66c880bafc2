-- explain_gate: the gate at which a blocked job waits: how much of it is in use, its holders, and the jobs before.
-- A:      id, key, is_limit, limit: its name, holders (how many may be named)
-- Return: {used, state, setting, turn, head, open_at, holders, ahead or -1}
-- Keys:   used, gate, limits, turn, members, opens, permits, run, stopped
-- flags:  no-writes
-- parts:
local holders, named = call('HKEYS', K.permits(A.key)), {}
-- Permits of limits are in the claims that have passed them.
local runs = A.is_limit and call('HGETALL', K.run) or {}
for i = 1, #runs, 2 do
  if string.find(runs[i + 1], A.key, 1, true) then
    for _, use in ipairs(read(runs[i + 1])[6] or {}) do
      if use[1] == A.key then holders[#holders + 1] = runs[i] end
    end
  end
end
table.sort(holders)
for i = 1, math.min(#holders, A.holders) do named[i] = holders[i] end
return {
  call('HGET', K.used, A.key), call('HGET', K.gate, A.key), call('HGET', K.limits, A.limit),
  call('HGET', K.turn, A.key), call('ZRANGE', K.members(A.key), 0, 0)[1] or '',
  call('ZSCORE', K.opens, A.key), named, call('ZRANK', K.stopped(A.key), A.id) or -1,
}
