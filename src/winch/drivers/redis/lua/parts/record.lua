-- record: one job as a table, and how it changes. Says in Lua what core/changes.py says in Python.
--
-- env: task, options, args, queue, priority, tenant, fifo, unique key, tags, headers, version, expires,
--      max_attempts, keep (false where there is none). Task and options stand first: parts/tasks.lua reads these alone
-- j:   s state, t run_at, a attempt, c crashes, r rescues, u suspect, n fence, x session, k claimed_at,
--      e ended_token, q cancel_requested_at, p progress, h checkpoint, l log, H history, f finished_at,
--      R result, w reason, g fingerprint, U has_undo, G gate it waits at, N number in its FIFO key, M token and
--      number of its last numbered note; and, not stored: id, env, created, token, n0 (fence before), holds
--      (whether its claim has permits), passed (what the claim noted of gates), had (whether the claim that has ended
--      had permits), is_damaged
local OPTIONS, QUEUE, PRIORITY, TENANT, UNIQUE, HEADERS, VERSION, KEPT = 2, 4, 5, 6, 8, 10, 11, 14
local gave_back  -- of parts/admit.lua, for scripts that end claims

local function is_gated(env)
  local options = env[OPTIONS]
  return options and string.sub(options, 1, #GATED) == GATED
end

-- Ready jobs with gates or a tenant stand in sets of their own: a claim of plain jobs never meets them.
local function stand(id, env, key)
  local queue, tenant = env[QUEUE], env[TENANT]
  if not is_gated(env) then
    call('ZADD', K.ready(queue), key, id)
  elseif not tenant then
    call('ZADD', K.gated(queue), key, id)
  else
    call('ZADD', K.tenanted(queue), key, id)
    call('ZADD', K.line(queue, tenant), key, id)
    local start = math.max(
      tonumber(call('HGET', K.gate, 'tenants:' .. queue) or 0),
      tonumber(call('ZSCORE', K.fair(queue), tenant) or 0)
    )
    call('ZADD', K.tenants(queue), 'NX', string.format('%.17g', start), tenant)
  end
end

local function stand_down(id, env)
  local queue, tenant = env[QUEUE], env[TENANT]
  if not is_gated(env) then
    call('ZREM', K.ready(queue), id)
  elseif not tenant then
    call('ZREM', K.gated(queue), id)
  else
    local line = K.line(queue, tenant)
    call('ZREM', K.tenanted(queue), id)
    call('ZREM', line, id)
    if call('EXISTS', line) == 0 then call('ZREM', K.tenants(queue), tenant) end
  end
end

-- The next number after this one, also where a double has no place for each.
local function next_number(n)
  return n + (n < EXACT and 1 or PAST_EXACT)
end

local function sort_key(j)
  return string.format('%d', j.t - head_start(j.env[QUEUE], j.env[PRIORITY]))
end

-- The moment of creation and the envelope; nil where the bytes are damaged.
local function read_envelope(e)
  local is_read, created, env = pcall(read, e)
  if is_read and type(created) == 'number' and type(env) == 'table' and #env == KEPT then return created, env end
end

local function open(id, e, s, r)
  local created, env = read_envelope(e)
  local j = s and read(s) or {}
  if not env then
    -- A claim of it can end, and it can be removed when it is final. Where else it stands is not known.
    if not r and not FINAL[j.s] then error('the envelope of job ' .. id .. ' is damaged') end
    local queue = r and read(r)[4] or ''
    created, env = 0, {'', false, '{}', queue, 0, false, false, false, false, false, 1, false, false, false}
    j.is_damaged = true
  end
  j.id, j.env, j.created = id, env, created
  if r then
    local claim = read(r)
    j.token, j.x, j.k, j.holds, j.passed = claim[1], claim[2], claim[3], claim[5], claim[6]
    j.s, j.a, j.n0 = 'running', (j.a or 0) + 1, j.n
    j.n = math.max(next_number(j.n or 0), j.k)
  else
    j.s = j.s or 'ready'
  end
  j.a, j.t = j.a or 0, j.t or created
  return j
end

-- The rows of jobs that were read together: envelope, state, claim. The first look at a job uses its row up.
local ahead = {}

local function read_ahead(ids)
  local es, ss, rs = fetch('HMGET', K.env, ids), fetch('HMGET', K.st, ids), fetch('HMGET', K.run, ids)
  for i, id in ipairs(ids) do ahead[id] = {es[i], ss[i], rs[i]} end
  return es, ss
end

local function load(id)
  local row = ahead[id]
  if row then
    ahead[id] = nil
    return row[1] and open(id, row[1], row[2], row[3]) or nil
  end
  local e = call('HGET', K.env, id)
  if not e then return nil end
  return open(id, e, call('HGET', K.st, id), call('HGET', K.run, id))
end

local UNSTORED = {
  id = true, env = true, created = true, token = true, n0 = true, holds = true, passed = true, had = true,
  is_damaged = true,
}

local function save(j)
  local kept = {}
  for field, value in pairs(j) do
    if not UNSTORED[field] then kept[field] = value end
  end
  if j.s == 'running' then  -- the claim itself is in `run`
    kept.s, kept.a, kept.n, kept.x, kept.k = 'ready', j.a - 1, j.n0, nil, nil
  end
  if j.t == j.created then kept.t = nil end  -- as `open` takes it to be
  call('HSET', K.st, j.id, pack(kept))
end

local function save_env(j)
  call('HSET', K.env, j.id, pack(j.created) .. pack(j.env))
end

-- The entry in `waiters` of a job that waits for a key.
local function waiter(key, wait)
  return #key .. ':' .. key .. ':' .. wait
end

-- A job waits for this, and it has come: unblock will look at it.
local function look_again(key)
  local from = waiter(key, '')
  if #call('ZRANGEBYLEX', K.waiters, '[' .. from, '[' .. from .. ':', 'LIMIT', 0, 1) == 0 then return end
  call('RPUSH', K.rechecks, key)
  is_due = true
end

-- Which waits the header of a job announces: the key that it shares with other jobs, or nil; and whether some
-- job waits for this job alone.
local function awaited_by(j)
  local headers = j.env[HEADERS]
  local from, to = string.find(headers or '', AWAITED, 1, true)
  if not from then return nil, false end
  local together, each = string.match(headers, '^"(all:[^"+]*)(%+?)', to + 1)
  return together, not together or each ~= ''
end

-- The job is not final any more, or not yet. Answers whether it is waited for alone.
local function await(header)
  local together, each = string.match(header == true and '' or header, '^(all:[^+]*)(%+?)')
  if together then call('HINCRBY', K.unfinished, together, 1) end
  return not together or each ~= ''
end

local function awaits_again(j)
  local together, is_alone = awaited_by(j)
  if together then call('HINCRBY', K.unfinished, together, 1) end
  if is_alone then call('SADD', K.awaited, j.id) end
end

-- So many of those that are waited for together are final, or gone.
local function fewer(together, count)
  if call('HINCRBY', K.unfinished, together, -count) <= 0 then
    call('HDEL', K.unfinished, together)
    look_again(together)
  end
end

-- The job is final, or gone.
local function tell_waiting(j, is_dead)
  local together, is_alone = awaited_by(j)
  if together then fewer(together, 1) end
  if not is_alone then return end
  call('SREM', K.awaited, j.id)
  look_again('job:' .. j.id)
  if is_dead then look_again('dead:' .. j.id) end
end

-- Some of what a wait that is over was still for.
local function forget_wants(wait)
  local found = call('HSCAN', K.wants(wait), 0, 'COUNT', 500)[2]
  for i = 1, #found, 2 do
    call('ZREM', K.waiters, waiter(found[i], wait))
    call('HDEL', K.wants(wait), found[i])
  end
end

local function forget_wait(id)
  local wait = call('HGET', K.wait_of, id)
  if not wait then return end
  call('HDEL', K.wait_of, id)
  call('HDEL', K.wait_job, wait)
  call('HDEL', K.wait_left, wait)
  call('ZREM', K.wait_until, wait)
  forget_wants(wait)
  if call('EXISTS', K.wants(wait)) == 1 then call('RPUSH', K.waits_over, wait) end
end

-- A claim has ended: what it had of its queue's concurrency goes back, and a worker that waits looks again.
local function leave_queue(j)
  local queue = j.env[QUEUE]
  local key = 'queue:' .. queue
  if call('HDEL', K.permits(key), j.id) == 0 then return end
  if call('HINCRBY', K.used, key, -1) <= 0 then call('HDEL', K.used, key) end
  ring(queue)
end

-- Take the job out of the place that its state gives it.
local function leave(j)
  local queue = j.env[QUEUE]
  if j.s == 'running' then
    call('HDEL', K.run, j.id)
    call('SREM', K.held(j.x), j.id)
    if j.q then call('SREM', K.cancelling, j.id) end
    j.had = j.holds
    if j.holds then leave_queue(j) end
  elseif j.s == 'ready' then
    stand_down(j.id, j.env)
  elseif j.s == 'scheduled' or j.s == 'retrying' then
    call('ZREM', K[j.s](queue), j.id)
  elseif j.s == 'blocked' then
    call('ZREM', K.blocked(queue), j.id)
    if j.G then
      call('ZREM', K.stopped(j.G), j.id)
      if call('EXISTS', K.stopped(j.G)) == 0 then
        call('SREM', K.closed, j.G)
        call('ZREM', K.opens, j.G)
      end
      j.G = nil
    else
      forget_wait(j.id)
    end
  elseif j.s == 'cancelled' then
    call('ZREM', K.cancelled, j.id)
  elseif j.s == 'dead' then
    call('ZREM', K.dead, j.id)
    call('ZREM', K.deaths(j.env[1]), j.id)
    if call('EXISTS', K.deaths(j.env[1])) == 0 then call('ZREM', K.died, j.env[1]) end
    call('ZREM', K.alike(j.g), j.id)
    call('ZREM', K.alike_at(j.g), j.id)
    if tonumber(call('ZINCRBY', K.groups, -1, j.g)) <= 0 then call('ZREM', K.groups, j.g) end
  end
end

local function free_key(j)
  local key = j.env[UNIQUE]
  if key and call('HGET', K.uniq, key) == j.id then call('HDEL', K.uniq, key) end
  call('HDEL', K.ukey, j.id)
end

-- Put the job where its state belongs.
local function stay(j)
  local queue = j.env[QUEUE]
  if j.s == 'ready' then
    stand(j.id, j.env, sort_key(j))
    ring(queue)
  elseif j.s == 'scheduled' or j.s == 'retrying' then
    call('ZADD', K[j.s](queue), string.format('%d', j.t), j.id)
    if j.t - now < 2000000 then is_due = true end
  elseif j.s == 'blocked' then
    call('ZADD', K.blocked(queue), string.format('%d', j.t), j.id)
  else
    drop(j.id, string.format('%d', j.f + (j.env[KEPT] or KEEP[j.s])))
    if j.s == 'cancelled' then
      call('ZADD', K.cancelled, 0, j.id)
    elseif j.s == 'dead' then
      call('ZADD', K.dead, 0, j.id)
      call('ZADD', K.died, 0, j.env[1])
      call('ZADD', K.deaths(j.env[1]), string.format('%d', j.f), j.id)
      call('ZADD', K.alike(j.g), 0, j.id)
      call('ZADD', K.alike_at(j.g), string.format('%d', j.f), j.id)
      call('ZINCRBY', K.groups, 1, j.g)
    end
  end
end

-- The job has come to its state: put it where that belongs, and tell of it. `token`: the live claim's before.
local function enter(j, kind, token, by)
  if FINAL[j.s] then
    j.f = now
    free_key(j)
    tell_waiting(j, j.s == 'dead')
  end
  stay(j)
  save(j)
  event(j.id, kind, j.s, token, by, j.x, j.a)
  -- A job that has just been admitted holds no permit to return.
  if kind ~= 'admitted' and is_gated(j.env) then gave_back(j, false) end
end

-- The last LOG_LIMIT characters, which are not bytes.
local function longer(log, more)
  if not more then return log end
  local text = (log or '') .. more
  if #text <= LOG_LIMIT then return text end
  local _, characters = string.gsub(text, '[^\128-\191]', '')
  local at = 1
  for _ = 1, characters - LOG_LIMIT do
    at = string.find(text, '[^\128-\191]', at + 1)
  end
  return string.sub(text, at)
end

local function remember(j, entry)
  local history = j.H or {}
  history[#history + 1] = entry
  while #history > HISTORY_LIMIT do table.remove(history, 1) end
  j.H = history
end

local function grow(j, what, fault, by, at)
  remember(j, {
    what = what, at = at or now, attempt = j.a, token = by, session = j.x, claimed_at = j.k,
    error = fault, log = j.l,
  })
end

local function acted(j, what, by, note)
  remember(j, {what = what, at = now, by = by, note = note})
end

-- How the holder of this token ended its claim; nil where the holder did not end it.
local function ended_as(j, token)
  for _, entry in ipairs(j.H or {}) do
    if entry.token == token then return entry.what end
  end
  if j.e == token then return j.s == 'completed' and 'completed' or 'released' end
end

-- The answer to a fenced write that did not take. It repeats an ending only of the same kind; a requested
-- cancel had turned every end that is not final into a cancelled job. Without `to` any ending counts.
local function look_up(id, token, to, what)
  local s = call('HGET', K.st, id)
  local ended = s and ended_as(read(s), token)
  if not ended then return 'lost' end
  if to == 'completed' or to == 'cancelled' then what = to end
  local is_repeat = not to or ended == what or (ended == 'cancelled' and not FINAL[to])
  return is_repeat and 'already' or 'lost'
end

local function after_claim(j, to)
  -- A job with steps to undo runs once more to undo them.
  if j.q and not FINAL[to] then return j.U and 'ready' or 'cancelled' end
  return to
end

-- Unrun: ready at the old place. Only the holder's own release is remembered by its token.
local function give_back(j, by, is_holder, has_started)
  local token = j.token
  leave(j)
  local to = after_claim(j, 'ready')
  if to == 'cancelled' then
    grow(j, 'cancelled', nil, is_holder and token or nil)
  elseif has_started then
    grow(j, 'released', nil, is_holder and token or nil)
  end
  j.s = to
  j.a = j.a - 1
  if is_holder then j.e = token end
  enter(j, 'released', token, by)
end

-- The holder's claims among these: id -> job, for each pair that is live.
local function held_by(claim)
  local row, r = ahead[claim[1]], nil
  if row then r = row[3] else r = call('HGET', K.run, claim[1]) end
  if not r or read(r)[1] ~= claim[2] then
    ahead[claim[1]] = nil
    return nil
  end
  return load(claim[1])
end
