-- unblock: blocked -> ready, for jobs whose wait is over. Looks at keys that were written down.
-- A:      now; limit; most: how many that wait for them are dealt with at once
-- Return: {now, count (limit: there is more to look at), the end of the next wait or -1}
-- Keys:   rechecks, waiters, wants, wait_of, wait_job, wait_left, wait_until, waits_over, untaken, and as promote
-- flags:
-- parts:  put record live waits
local count, most = 0, A.most

local function wake_up(wait)
  local id = call('HGET', K.wait_job, wait)
  local j = id and load(id)
  if not j or j.s ~= 'blocked' then
    if id then forget_wait(id) end
    return
  end
  leave(j)
  j.s, j.t, j.w = 'ready', now, nil
  enter(j, 'admitted', nil, nil)
  count = count + 1
end

-- Those who wait for this have one thing less to wait for. False: there are more than may be dealt with.
local function came(key)
  local from = waiter(key, '')
  local found = call('ZRANGEBYLEX', K.waiters, '[' .. from, '[' .. from .. ':', 'LIMIT', 0, most)
  for _, member in ipairs(found) do
    local wait = string.sub(member, #from + 1)
    local is_enough = call('HGET', K.wants(wait), key) == '1'
    call('ZREM', K.waiters, member)
    call('HDEL', K.wants(wait), key)
    if call('HEXISTS', K.wait_job, wait) == 1 then
      if is_enough or call('HINCRBY', K.wait_left, wait, -1) <= 0 then wake_up(wait) end
    end
  end
  most = most - #found
  return most > 0
end

local looked = call('LPOP', K.rechecks, A.limit) or {}
for place, key in ipairs(looked) do
  local is_done = true
  if has_come(key) then is_done = came(key) end
  local job = string.match(key, '^job:(.*)')
  if is_done and job and has_come('dead:' .. job) then is_done = came('dead:' .. job) end
  if not is_done then
    for again = #looked, place, -1 do call('LPUSH', K.rechecks, looked[again]) end
    break
  end
end
local upto = string.format('%d', now)
for _, wait in ipairs(call('ZRANGEBYSCORE', K.wait_until, '-inf', upto, 'LIMIT', 0, A.limit)) do
  wake_up(wait)
end
-- What is left of waits that were over before all had come.
local over = call('LINDEX', K.waits_over, 0)
if over then
  forget_wants(over)
  if call('EXISTS', K.wants(over)) == 0 then call('LPOP', K.waits_over) end
end
local first = call('ZRANGE', K.wait_until, 0, 0, 'WITHSCORES')
local is_more = call('EXISTS', K.rechecks) == 1
done()
return {now, is_more and A.limit or count, first[2] and tonumber(first[2]) or -1}
