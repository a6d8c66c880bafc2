-- limits: what is set by name, what is out of each gate and how many wait at it.
-- A:      –
-- Return: {{name, setting, …}, {gate, used, …}, {gate, waiting, …}}
-- Keys:   limits, used, closed, stopped
-- flags:  no-writes
-- parts:
local waiting = {}
for _, key in ipairs(call('SMEMBERS', K.closed)) do
  waiting[#waiting + 1], waiting[#waiting + 2] = key, call('ZCARD', K.stopped(key))
end
return {call('HGETALL', K.limits), call('HGETALL', K.used), waiting}
