-- shut: a family of gates goes home: this part admits none of its jobs any more; see parts/homes.lua.
-- A:      family, name: of its gates; confirm
-- Return: {1 where it is at home already, {gate, what it remembers, until when it matters, …}}
-- Keys:   meta, shut, common, gate, rests
-- flags:
-- parts:
-- WAIT waits for what its own connection wrote.
if A.confirm then call('HSET', K.meta, 'confirmed_at', string.format('%d', now)) end
if call('SISMEMBER', K.common, A.family) == 1 then return {1, {}} end
call('SADD', K.shut, A.family)
local out, all = {}, A.name and call('HGETALL', K.gate) or {}
for i = 1, #all, 2 do
  if string.sub(all[i], 1, #A.name + 1) == A.name .. '=' then
    out[#out + 1], out[#out + 2], out[#out + 3] = all[i], all[i + 1], call('ZSCORE', K.rests, all[i]) or ''
  end
end
return {0, out}
