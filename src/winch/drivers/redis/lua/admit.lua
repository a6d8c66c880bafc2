-- admit: blocked -> ready, at gates whose moment has come. A sweep looks at every gate that is waited at.
-- A:      now; limit, is_sweep, many (how many gates a sweep looks at)
-- Return: {now, count, the next moment or -1}
-- Keys:   opens, closed, caps, rests, gate, used, permits, run, and as release
-- flags:  allow-oom
-- parts:  put record
local upto, count, keys = string.format('%d', now), 0, nil

-- Permits are the truth beside their sum; one of a job that does not run is left over from a mishap.
local function mend(key)
  local sum, all = 0, call('HGETALL', K.permits(key))
  for i = 1, #all, 2 do
    if call('HEXISTS', K.run, all[i]) == 1 then
      sum = sum + all[i + 1]
    else
      call('HDEL', K.permits(key), all[i])
    end
  end
  if sum > 0 then
    call('HSET', K.used, key, string.format('%d', sum))
  else
    call('HDEL', K.used, key)
  end
end

if A.is_sweep then
  keys = call('SRANDMEMBER', K.closed, A.many)
  for _, key in ipairs(keys) do
    if string.sub(key, 1, 5) ~= 'fifo:' then mend(key) end
  end
  for _, queue in ipairs(call('HKEYS', K.caps)) do mend('queue:' .. queue) end
  for _, key in ipairs(call('ZRANGEBYSCORE', K.rests, '-inf', upto, 'LIMIT', 0, A.many)) do
    call('HDEL', K.gate, key)
    call('ZREM', K.rests, key)
  end
else
  keys = call('ZRANGEBYSCORE', K.opens, '-inf', upto, 'LIMIT', 0, A.limit)
end
table.sort(keys)
for _, key in ipairs(keys) do
  if count >= A.limit then break end
  count = count + open_gate(key)
end
local first = call('ZRANGE', K.opens, 0, 0, 'WITHSCORES')
is_due = false  -- the caller is the one that would be woken
done()
return {now, count, tonumber(first[2] or -1)}
