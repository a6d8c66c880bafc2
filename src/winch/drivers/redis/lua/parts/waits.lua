-- waits: what blocked jobs wait for. A wait has a number of its own, so that what is left of one that is
-- over is never taken for part of the job's next one.
local function has_come(key)
  local signal, job, dead = string.match(key, '^signal:(.*)'), string.match(key, '^job:(.*)'), string.match(key, '^dead:(.*)')
  if signal then return call('EXISTS', K.untaken(signal)) == 1 end
  if job then return not is_live(job) end
  local s = dead and not is_live(dead) and call('HGET', K.st, dead)
  return s and read(s).s == 'dead' or false
end

-- The job waits for these, {key, is_enough} each, beside what it waits for already; till when, or nil.
-- What has come already is looked at by the next unblock; what comes later says so itself.
local function wait_for(id, waits, till)
  local wait = call('HGET', K.wait_of, id)
  if not wait then
    wait = tostring(call('HINCRBY', K.meta, 'waits', 1))
    call('HSET', K.wait_of, id, wait)
    call('HSET', K.wait_job, wait, id)
  end
  if till then call('ZADD', K.wait_until, string.format('%d', till), wait) end
  local left = 0
  for _, one in ipairs(waits) do
    local key, before = one[1], call('HGET', K.wants(wait), one[1])
    if before ~= '0' and not one[2] then left = left + 1 end
    if before == '0' and one[2] then left = left - 1 end
    call('HSET', K.wants(wait), key, one[2] and '1' or '0')
    call('ZADD', K.waiters, 0, waiter(key, wait))
    if has_come(key) then
      call('RPUSH', K.rechecks, key)
      is_due = true
    end
  end
  if left ~= 0 then call('HINCRBY', K.wait_left, wait, left) end
end
