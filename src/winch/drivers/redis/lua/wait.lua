-- wait: a worker waits for these queues ('' is for due jobs), for so many seconds.
-- A:      waiter, names, seconds
-- Return: 1
-- Keys:   waiting
-- flags:
-- parts:
local till = string.format('%d', clock() + A.seconds * 1000000)
for _, name in ipairs(A.names) do
  call('ZADD', K.waiting(name), till, A.waiter)
  call('EXPIRE', K.waiting(name), 60)
end
return 1
