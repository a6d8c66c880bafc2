-- unblock: blocked -> ready, for jobs whose wait is over. Looks at keys that were written down.
-- A:      now; limit; most: how many that wait for them are dealt with at once
-- Return: {now, count (limit: there is more to look at), the end of the next wait or -1}
-- Keys:   rechecks, waiters, wants, wait_of, wait_job, wait_left, wait_until, waits_over, untaken, ids, and
--         as promote
-- flags:
-- parts:  put record waits
local count, most = 0, A.most
local waits, keys_of, members, seen = {}, {}, {}, {}

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

-- Notes the jobs that wait for this. False: there are more than may be dealt with now.
local function gather(key)
  if seen[key] then return true end
  seen[key] = true
  local from = waiter(key, '')
  local found = call('ZRANGEBYLEX', K.waiters, '[' .. from, '[' .. from .. ':', 'LIMIT', 0, most)
  for _, member in ipairs(found) do
    local wait = string.sub(member, #from + 1)
    if not keys_of[wait] then
      keys_of[wait] = {}
      waits[#waits + 1] = wait
    end
    table.insert(keys_of[wait], key)
    members[#members + 1] = member
  end
  most = most - #found
  return most > 0
end

local looked = call('LPOP', K.rechecks, A.limit) or {}
local come = come_of(looked)
for place, key in ipairs(looked) do
  local death = string.gsub(key, '^job:', 'dead:')
  local is_done = not come[key] or gather(key)
  if is_done and death ~= key and come[death] then is_done = gather(death) end
  if not is_done then
    for again = #looked, place, -1 do call('LPUSH', K.rechecks, looked[again]) end
    break
  end
end
if #members > 0 then write('ZREM', K.waiters, members) end
-- Each has that much less to wait for.
for _, wait in ipairs(waits) do
  local is_enough, fewer = false, 0
  for _, flag in ipairs(fetch('HMGET', K.wants(wait), keys_of[wait])) do
    if flag == '1' then is_enough = true end
    if flag == '0' then fewer = fewer + 1 end
  end
  write('HDEL', K.wants(wait), keys_of[wait])
  if call('HEXISTS', K.wait_job, wait) == 1 then
    local is_all = fewer > 0 and call('HINCRBY', K.wait_left, wait, string.format('%d', -fewer)) <= 0
    if is_enough or is_all then wake_up(wait) end
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
