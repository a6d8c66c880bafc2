-- take_signal: the oldest signal that is not taken, or the one that this step has. Fenced by (id, token).
-- A:      now; claim: {id, token}; name, wanted_by, keep (how long it is kept once taken)
-- Return: {answer, payload or nil}
-- Keys:   run, took, signals, untaken, signal_ends
-- flags:
-- parts:
local r = call('HGET', K.run, A.claim[1])
if not r or read(r)[1] ~= A.claim[2] then return {'lost'} end
local mine = pack({A.claim[1], A.wanted_by, A.name})
local id = call('HGET', K.took, mine)
if not id then
  id = call('ZRANGE', K.untaken(A.name), 0, 0)[1]
  if not id then return {'took'} end
  local signal = read(call('HGET', K.signals(A.name), id))
  signal[3], signal[4] = A.claim[1], A.wanted_by
  call('HSET', K.signals(A.name), id, pack(signal))
  call('ZREM', K.untaken(A.name), id)
  call('ZADD', K.signal_ends, string.format('%d', signal[2] + A.keep), pack({A.name, id}))
  call('HSET', K.took, mine, id)
end
return {'took', read(call('HGET', K.signals(A.name), id))[1]}
