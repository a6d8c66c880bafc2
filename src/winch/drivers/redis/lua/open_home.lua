-- open_home: a family of gates is at home, with all its jobs; see parts/homes.lua.
-- A:      family, confirm; gates: {gate, when what it remembers no longer matters or ''}; queues: of its jobs. ARGV[2…]: what each
--         gate remembers
-- Return: 1
-- Keys:   meta, shut, common, gate, rests, waiting, bell
-- flags:
-- parts:  put
if A.confirm then call('HSET', K.meta, 'confirmed_at', string.format('%d', now)) end
for i, one in ipairs(A.gates) do
  if call('HSETNX', K.gate, one[1], ARGV[1 + i]) == 1 and one[2] ~= '' then call('ZADD', K.rests, one[2], one[1]) end
end
call('SADD', K.common, A.family)
call('SREM', K.shut, A.family)
for _, queue in ipairs(A.queues) do ring(queue) end
done()
return 1
