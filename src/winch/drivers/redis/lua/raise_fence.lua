-- raise_fence: no fenced enqueue with a lower number is stored from now on.
-- A:      number
-- Return: 1
-- Keys:   parcels
-- flags:  allow-oom
-- parts:
if A.number > tonumber(call('HGET', K.parcels, 'fence') or '0') then
  call('HSET', K.parcels, 'fence', string.format('%d', A.number))
end
return 1
