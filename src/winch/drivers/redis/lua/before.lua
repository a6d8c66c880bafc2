-- before: how many ready jobs of a queue come before one of another part of the store.
-- A:      queue, key, id
-- Return: the number
-- Keys:   ready
-- flags:  no-writes
-- parts:
local key, at = K.ready(A.queue), string.format('%d', A.key)
local number = call('ZCOUNT', key, '-inf', '(' .. at)
for _, id in ipairs(call('ZRANGEBYSCORE', key, at, at, 'LIMIT', 0, 1000)) do
  if id < A.id then number = number + 1 end
end
return number
