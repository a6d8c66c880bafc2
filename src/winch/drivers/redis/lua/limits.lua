-- limits: what is set by name, what is out of each gate and how many wait at it.
-- A:      –
-- Return: {{name, setting, …}, {gate, used, …}, {gate, waiting, …}, {queue, concurrency, …}}
-- Keys:   limits, caps, used, closed, stopped
-- flags:  no-writes
-- parts:
-- FIFO keys and scopes have no numbers to be set, and there may be many of them.
local waiting, unnamed = {}, {fifo = true, scope = true}
for _, key in ipairs(call('SMEMBERS', K.closed)) do
  if not unnamed[string.match(key, '^%l+')] then
    waiting[#waiting + 1], waiting[#waiting + 2] = key, call('ZCARD', K.stopped(key))
  end
end
return {call('HGETALL', K.limits), call('HGETALL', K.used), waiting, call('HGETALL', K.caps)}
