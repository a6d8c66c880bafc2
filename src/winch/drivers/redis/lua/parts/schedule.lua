-- schedule: rows of schedules, and which definition is in effect.
--
-- A row has definition, is_code, created_at, last_window, next_at, timing, pending, paused_at,
-- pause_reason as in storage/decide/schedules.py, and v, a number that no other state of any row has had: a caller
-- that decided by an older one must read again.

-- The definition of the session that started last, its timing, and how many sessions declare it.
local function declared_last(name)
  local last, of, count = nil, nil, 0
  local all = call('HGETALL', K.declared(name))
  for i = 1, #all, 2 do
    local session, entry = all[i], read(all[i + 1])
    count = count + 1
    if not last or entry[1] > last[1] or (entry[1] == last[1] and session > of) then
      last, of = entry, session
    end
  end
  if not last then return false, nil, 0 end
  return last[2], last[3], count
end

local function write_schedule(name, row)
  row.v = call('HINCRBY', K.meta, 'schedules', 1)
  call('HSET', K.sched, name, pack(row))
  -- When it wants to be looked at: 0 is now; one that is not active, never.
  local _, timing, sessions = declared_last(name)
  if row.paused_at or (row.is_code and sessions == 0) then
    call('ZREM', K.sched_due, name)
  elseif not row.next_at or row.pending or (sessions > 0 and timing ~= row.timing) then
    call('ZADD', K.sched_due, 0, name)
  else
    call('ZADD', K.sched_due, string.format('%d', row.next_at), name)
  end
end

-- What the code of a session declares; a new schedule's windows count from now on.
local function declare(session, schedules)
  local names = {}
  for i, entry in ipairs(schedules) do
    local name, definition, timing = entry[1], entry[2], entry[3]
    names[i] = name
    call('HSET', K.declared(name), session, pack({now, definition, timing}))
    local s = call('HGET', K.sched, name)
    local row = s and read(s) or {is_code = true, created_at = now, last_window = now}
    if row.is_code then row.definition = definition end
    write_schedule(name, row)
  end
  if #names > 0 then call('HSET', K.declares, session, pack(names)) end
end

local function undeclare(session)
  local names = call('HGET', K.declares, session)
  if not names then return end
  call('HDEL', K.declares, session)
  for _, name in ipairs(read(names)) do
    call('HDEL', K.declared(name), session)
    local s = call('HGET', K.sched, name)
    if s then write_schedule(name, read(s)) end
  end
end
