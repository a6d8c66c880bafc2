-- explain_queue: a queue's concurrency, how many of its jobs hold a permit of it, and which.
-- A:      queue, holders (how many may be named)
-- Return: {concurrency or '', used, holders}
-- Keys:   caps, permits
-- flags:  no-writes
-- parts:
local gate = 'queue:' .. A.queue
local holders, named = call('HKEYS', K.permits(gate)), {}
table.sort(holders)
for i = 1, math.min(#holders, A.holders) do named[i] = holders[i] end
return {call('HGET', K.caps, A.queue) or '', #holders, named}
