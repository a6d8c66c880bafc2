-- deaths: the tasks that have dead jobs, or the dead jobs of one task, newest first.
-- A:      task (nil: the tasks), start, count
-- Return: tasks; or ids with envelopes and states
-- Keys:   died, deaths, env, st
-- flags:  no-writes
-- parts:
if not A.task then return call('ZRANGE', K.died, 0, -1) end
local ids = call('ZREVRANGE', K.deaths(A.task), A.start, A.start + A.count - 1)
return {ids, fetch('HMGET', K.env, ids), fetch('HMGET', K.st, ids)}
