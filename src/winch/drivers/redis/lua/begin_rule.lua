-- begin_rule: what is to be set for a queue in all parts of a cluster is noted at home, with a number of its own.
-- A:      queue, concurrency (false: any number), is_strict
-- Return: the number
-- Keys:   ruled, ruling
-- flags:
-- parts:
local before = call('HGET', K.ruling, A.queue)
local number = math.max(tonumber(call('HGET', K.ruled, A.queue) or 0), before and read(before)[1] or 0) + 1
call('HSET', K.ruling, A.queue, pack({number, A.concurrency, A.is_strict}))
return number
