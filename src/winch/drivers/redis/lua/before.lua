-- before: how many ready jobs of a queue come before one of another part of the store.
-- A:      queue, key, id
-- Return: the number
-- Keys:   ready, gated, tenanted
-- flags:  no-writes
-- parts:  ahead
return ahead_in_others(A.queue, string.format('%d', A.key), A.id, nil)
