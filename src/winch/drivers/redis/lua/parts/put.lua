-- put: wake-ups, events, and what a script writes at its end.
local keeps_events = call('HGET', K.meta, 'events') == '1'
local rings, is_due, drops = {}, false, {}

local function ring(queue)
  rings[queue] = (rings[queue] or 0) + 1
end

local function event(id, kind, state, token, by, session, attempt)
  if not keeps_events then return end
  local seq, v
  if A.in_cluster then  -- several parts are read as one story: numbers are moments
    seq = math.max(tonumber(call('GET', K.seq) or 0) + 1, clock())
    call('SET', K.seq, string.format('%d', seq))
  else
    seq = call('INCR', K.seq)
  end
  v = call('HINCRBY', K.changes, id, 1)
  call('XADD', K.events, string.format('%d-0', seq), 'e', pack({
    job = id, v = v, kind = kind, state = state, token = token, by_token = by,
    session = session, attempt = attempt, at = now,
  }))
end

local function drop(id, at)
  local list = drops[at] or {}
  list[#list + 1] = id
  drops[at] = list
end

-- How far a priority moves the sort keys of a queue's jobs ahead.
local function head_start(queue, priority)
  if priority == 0 then return 0 end
  return priority * HEAD_START * (call('SISMEMBER', K.strict, queue) == 1 and STRICT or 1)
end

-- One waiter is woken for each job, the one that began to wait last: it is the most likely to be alive.
local function wake(name, jobs)
  local key = K.waiting(name)
  if call('EXISTS', key) == 0 then return end
  call('ZREMRANGEBYSCORE', key, '-inf', clock())
  for place, waiter in ipairs(call('ZPOPMAX', key, jobs)) do
    if place % 2 == 1 then
      call('RPUSH', K.bell(waiter), name)
      call('EXPIRE', K.bell(waiter), 60)
    end
  end
end

-- The last line of every script that changes something.
local function done()
  for at, ids in pairs(drops) do call('ZADD', K.drop, at, pack(ids)) end
  for queue, jobs in pairs(rings) do
    if jobs > 0 then wake(queue, jobs) end
  end
  if is_due then wake('', 1) end
end
