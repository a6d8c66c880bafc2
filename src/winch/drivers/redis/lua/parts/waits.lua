-- waits: what blocked jobs wait for. A wait has a number of its own, so that what is left of one that is
-- over is never taken for part of the job's next one.

-- What of these has come, as key -> true; with a job that is dead, its death too.
local function come_of(keys)
  local come, ids = {}, {}
  for _, key in ipairs(keys) do
    local kind, name = string.match(key, '^(%l+):(.*)$')
    if kind == 'job' or kind == 'dead' then
      ids[#ids + 1] = name
    elseif kind == 'signal' and call('EXISTS', K.untaken(name)) == 1 then
      come[key] = true
    elseif kind == 'all' and call('HEXISTS', K.unfinished, key) == 0 then
      come[key] = true
    end
  end
  local states = fetch('HMGET', K.st, ids)
  for i, id in ipairs(ids) do
    local is_there = call('HEXISTS', K.env, id) == 1
    local state = is_there and states[i] and read(states[i]).s or 'ready'
    if not is_there or FINAL[state] then come['job:' .. id] = true end
    if state == 'dead' then come['dead:' .. id] = true end
  end
  return come
end

-- The job waits for these, {key, is_enough} each, beside what it waits for already; till when, or nil.
-- What has come already is looked at by the next unblock; what comes later says so itself.
local function wait_for(id, waits, till)
  local wait, keys, before = call('HGET', K.wait_of, id), {}, {}
  for i, one in ipairs(waits) do keys[i] = one[1] end
  if wait then
    before = fetch('HMGET', K.wants(wait), keys)
  else
    wait = string.format('%.0f', call('HINCRBY', K.meta, 'waits', 1))
    call('HSET', K.wait_of, id, wait)
    call('HSET', K.wait_job, wait, id)
  end
  if till then call('ZADD', K.wait_until, string.format('%d', till), wait) end
  local left, wants, members, arrived = 0, {}, {}, {}
  local come = come_of(keys)
  for i, one in ipairs(waits) do
    local key, is_enough = one[1], one[2]
    if before[i] ~= '0' and not is_enough then left = left + 1 end
    if before[i] == '0' and is_enough then left = left - 1 end
    wants[2 * i - 1], wants[2 * i] = key, is_enough and '1' or '0'
    members[2 * i - 1], members[2 * i] = '0', waiter(key, wait)
    if come[key] then arrived[#arrived + 1] = key end
  end
  write('HSET', K.wants(wait), wants)
  write('ZADD', K.waiters, members)
  if left ~= 0 then call('HINCRBY', K.wait_left, wait, left) end
  if #arrived > 0 then
    write('RPUSH', K.rechecks, arrived)
    is_due = true
  end
end
