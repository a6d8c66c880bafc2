-- settle: the messages of jobs that left this part and have not been confirmed; what is known too long is dropped.
-- A:      keep (how long what moved is remembered), limit
-- Return: ids
-- Keys:   leaving, away, arrived
-- flags:  allow-oom
-- parts:
local before = string.format('%d', clock() - A.keep)
call('ZREMRANGEBYSCORE', K.away, '-inf', before)
call('ZREMRANGEBYSCORE', K.arrived, '-inf', before)
local ids, found = call('HKEYS', K.leaving), {}
for i = 1, math.min(#ids, A.limit) do found[i] = ids[i] end
return found
