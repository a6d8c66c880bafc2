-- signal: keeps a signal until a job takes it. One with the same id changes nothing.
-- A:      now; name, id, payload, keep (how long it is kept if no job takes it)
-- Return: 1 when it is new, else 0
-- Keys:   signals, untaken, signal_ends, waiters, rechecks, waiting, bell
-- flags:
-- parts:  put record
local signal = pack({A.payload, now, false, false})
if call('HSETNX', K.signals(A.name), A.id, signal) == 0 then return 0 end
call('ZADD', K.untaken(A.name), string.format('%d', now), A.id)
call('ZADD', K.signal_ends, string.format('%d', now + A.keep), pack({A.name, A.id}))
look_again('signal:' .. A.name)
done()
return 1
