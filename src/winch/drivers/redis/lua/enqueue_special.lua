-- enqueue_special: -> ready | scheduled, for jobs of any kind. All of the call or nothing.
-- A:      now; confirm; names: queue -> tasks; is_repeat;
--         jobs: {id, –, queue, priority, delay, run_at, is_given, unique key, on_duplicate, keep, gated},
--         false where there is none. ARGV[2…]: their envelopes, in order
-- Return: msgpack: {twice = id} and nothing is stored; or {answers}: {is_new, holder, is_replaced} each
-- Keys:   env, ids, st, ready, scheduled, queues, tasks, keep, uniq, ukey, waiting, bell, events
-- flags:
-- parts:  put rates scopes gates record admit
-- A repeat writes nothing else, and WAIT waits for what its own connection wrote.
if A.confirm then call('HSET', K.meta, 'confirmed_at', string.format('%d', now)) end

local created = pack(now)
for queue, tasks in pairs(A.names) do
  if call('SADD', K.tasks(queue), unpack(tasks)) > 0 then call('SADD', K.queues, queue) end
end

local ID, ENVELOPE, NEW_QUEUE, NEW_PRIORITY, DELAY, RUN_AT, GIVEN, KEY, ON_DUPLICATE, NEW_KEEP, HAS_GATES =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local known, times = {}, {}
for place, job in ipairs(A.jobs) do
  job[ENVELOPE] = ARGV[1 + place]
  times[job[ID]] = (times[job[ID]] or 0) + 1
  known[job[ID]] = call('HEXISTS', K.env, job[ID]) == 1
end
for _, job in ipairs(A.jobs) do
  local is_there = known[job[ID]] or times[job[ID]] > 1
  if is_there and not (job[GIVEN] or A.is_repeat) then return pack({twice = job[ID]}) end
end

-- What storage/unique.py says, in the order of the call.
local answers, store, mine, replace, is_refused = {}, {}, {}, {}, false
for place, job in ipairs(A.jobs) do
  local key, id = job[KEY], job[ID]
  local holder = key and call('HGET', K.uniq, key) or nil
  if known[id] then
    answers[place] = {false}
  elseif not key or holder == id then
    store[#store + 1] = {place, job}
  elseif not holder and (not mine[key] or store[mine[key]][2][ID] == id) then
    mine[key] = mine[key] or #store + 1
    store[#store + 1] = {place, job}
  else
    local is_replaced = false
    if job[ON_DUPLICATE] == 'replace' then
      if not holder then
        local first = store[mine[key]][2]
        local envelope, other = read(first[ENVELOPE]), read(job[ENVELOPE])
        envelope[2], envelope[3], envelope[PRIORITY] = other[2], other[3], other[PRIORITY]
        first[ENVELOPE], first[NEW_PRIORITY] = pack(envelope), job[NEW_PRIORITY]
        first[DELAY], first[RUN_AT] = job[DELAY], job[RUN_AT]
        is_replaced = true
      elseif MAY.replace[load(holder).s] then
        replace[#replace + 1] = {holder, job}
        is_replaced = true
      end
    end
    is_refused = is_refused or (job[ON_DUPLICATE] ~= 'return' and not is_replaced)
    answers[place] = {false, holder or store[mine[key]][2][ID], is_replaced}
  end
end
if is_refused then
  for place = 1, #A.jobs do
    local answer = answers[place]
    answers[place] = {false, answer and answer[2] or false, false}
  end
  return pack({answers = answers})
end

local function due_at(job)
  local due = job[DELAY] and now + job[DELAY] or job[RUN_AT] or nil
  return due and due > now and due or nil
end

for _, chosen in ipairs(store) do
  local place, job = chosen[1], chosen[2]
  local id, queue = job[ID], job[NEW_QUEUE]
  answers[place] = {not known[id]}
  if not known[id] then
    known[id] = true
    call('HSET', K.env, id, created .. job[ENVELOPE])
    call('ZADD', K.ids, 0, id)
    if job[KEY] then
      call('HSET', K.uniq, job[KEY], id)
      call('HSET', K.ukey, id, job[KEY])
    end
    if job[NEW_KEEP] then call('HSET', K.keep, id, string.format('%d', job[NEW_KEEP])) end
    local due, env = due_at(job), nil
    if job[HAS_GATES] then
      env = read(job[ENVELOPE])
      join(id, now, env)
    end
    if due then
      call('HSET', K.st, id, pack({s = 'scheduled', t = due}))
      call('ZADD', K.scheduled(queue), string.format('%d', due), id)
      if due - now < 2000000 then is_due = true end
    else
      local key = string.format('%d', now - job[NEW_PRIORITY] * HEAD_START)
      if env then stand(id, env, key) else call('ZADD', K.ready(queue), key, id) end
      ring(queue)
    end
    event(id, 'enqueued', due and 'scheduled' or 'ready', nil, nil, nil, 0)
  end
end

for _, pair in ipairs(replace) do
  local j, job = load(pair[1]), pair[2]
  local was, other, due = j.s, read(job[ENVELOPE]), due_at(job)
  leave(j)
  j.s, j.t, j.a, j.w = due and 'scheduled' or 'ready', due or now, 0, nil
  j.env[2], j.env[3], j.env[PRIORITY] = other[2], other[3], other[PRIORITY]
  remember(j, {what = 'replaced', at = now})
  save_env(j)
  -- A job that waits where it waited is no event: its state is the same.
  local told = keeps_events
  keeps_events = told and was ~= j.s
  enter(j, 'replaced', nil, nil)
  keeps_events = told
end
done()
return pack({answers = answers})
