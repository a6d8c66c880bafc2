-- promote: scheduled | retrying -> ready, for what is due, earliest first.
-- A:      now; limit
-- Return: {now, count, the next moment or -1}
-- Keys:   queues, scheduled, retrying, ready, env, st, waiting, bell, events
-- flags:
-- parts:  put record
local due, next_at = {}, nil
local upto = string.format('%d', now)
for _, queue in ipairs(call('SMEMBERS', K.queues)) do
  for _, state in ipairs({'scheduled', 'retrying'}) do
    local found = call('ZRANGEBYSCORE', K[state](queue), '-inf', upto, 'WITHSCORES', 'LIMIT', 0, A.limit)
    for i = 1, #found, 2 do due[#due + 1] = {tonumber(found[i + 1]), found[i]} end
  end
end
table.sort(due, function(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return a[2] < b[2]
end)
local count = math.min(#due, A.limit)
for i = 1, count do
  local j = load(due[i][2])
  leave(j)
  j.s = 'ready'
  enter(j, 'promoted', nil, nil)
end
for _, queue in ipairs(call('SMEMBERS', K.queues)) do
  for _, state in ipairs({'scheduled', 'retrying'}) do
    local first = call('ZRANGE', K[state](queue), 0, 0, 'WITHSCORES')
    if first[2] and (not next_at or tonumber(first[2]) < next_at) then next_at = tonumber(first[2]) end
  end
end
done()
return {now, count, next_at or -1}
