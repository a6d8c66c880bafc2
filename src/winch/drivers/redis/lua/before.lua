-- before: how many ready jobs of a queue come before one of another part of the store.
-- A:      queue, run_at, priority, id
-- Return: the number
-- Keys:   ready, gated, tenanted, strict
-- flags:  no-writes
-- parts:  ahead
local level = HEAD_START * (call('SISMEMBER', K.strict, A.queue) == 1 and STRICT or 1)
return ahead_in_others(A.queue, string.format('%d', A.run_at - A.priority * level), A.id, nil)
