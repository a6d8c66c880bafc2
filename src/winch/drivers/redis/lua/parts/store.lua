-- store: jobs of any kind, all of a call or nothing. What storage/unique.py says, in the order of the call.
--
-- A job is {id, envelope, queue, priority, delay, run_at, is_given, unique key, on_duplicate, keep, is_awaited,
-- is_gated}, false where there is none; its envelope is put in by `with_envelopes`.
local ID, ENVELOPE, NEW_QUEUE, NEW_PRIORITY, DELAY, RUN_AT, GIVEN, KEY, ON_DUPLICATE, NEW_KEEP, IS_AWAITED, HAS_GATES =
  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12

-- The envelopes are ARGV[2…], in the order of the jobs.
local function with_envelopes(jobs)
  for place, job in ipairs(jobs) do job[ENVELOPE] = ARGV[1 + place] end
  return jobs
end

local function due_at(job)
  local due = job[DELAY] and now + job[DELAY] or job[RUN_AT] or nil
  return due and due > now and due or nil
end

-- Who is there already: id -> true. And an id that may not be, where there is one.
local function known_of(jobs, is_repeat)
  local known, times = {}, {}
  for _, job in ipairs(jobs) do
    times[job[ID]] = (times[job[ID]] or 0) + 1
    known[job[ID]] = call('HEXISTS', K.env, job[ID]) == 1
  end
  for _, job in ipairs(jobs) do
    local is_there = known[job[ID]] or times[job[ID]] > 1
    if is_there and not (job[GIVEN] or is_repeat) then return known, job[ID] end
  end
  return known, nil
end

-- What becomes of each: answers where that is decided; {place, job} to store; {holder, job} to replace.
local function planned(jobs, known)
  local answers, chosen, mine, replace, is_refused = {}, {}, {}, {}, false
  for place, job in ipairs(jobs) do
    local key, id = job[KEY], job[ID]
    local holder = key and call('HGET', K.uniq, key) or nil
    if known[id] then
      answers[place] = {false}
    elseif not key or holder == id then
      chosen[#chosen + 1] = {place, job}
    elseif not holder and (not mine[key] or chosen[mine[key]][2][ID] == id) then
      mine[key] = mine[key] or #chosen + 1
      chosen[#chosen + 1] = {place, job}
    else
      local is_replaced = false
      if job[ON_DUPLICATE] == 'replace' then
        if not holder then
          local first = chosen[mine[key]][2]
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
      answers[place] = {false, holder or chosen[mine[key]][2][ID], is_replaced}
    end
  end
  return answers, chosen, replace, is_refused
end

local function insert(job)
  local id, queue, due = job[ID], job[NEW_QUEUE], due_at(job)
  call('HSET', K.env, id, pack(now) .. job[ENVELOPE])
  call('ZADD', K.ids, 0, id)
  if job[KEY] then
    call('HSET', K.uniq, job[KEY], id)
    call('HSET', K.ukey, id, job[KEY])
  end
  if job[NEW_KEEP] then call('HSET', K.keep, id, string.format('%d', job[NEW_KEEP])) end
  if job[IS_AWAITED] then call('SADD', K.awaited, id) end
  local env = job[HAS_GATES] and read(job[ENVELOPE])
  if env then join(id, now, env) end
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

local function replace_by(id, job)
  local j = load(id)
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

-- Store the jobs. Answers {is_new, holder, is_replaced} for each; or nil and an id that came twice, and
-- nothing is stored. `names`: queue -> tasks.
local function store(jobs, names, is_repeat)
  local known, twice = known_of(jobs, is_repeat)
  if twice then return nil, twice end
  local answers, chosen, replace, is_refused = planned(jobs, known)
  if is_refused then
    for place = 1, #jobs do
      local answer = answers[place]
      answers[place] = {false, answer and answer[2] or false, false}
    end
    return answers
  end
  for queue, tasks in pairs(names) do
    if call('SADD', K.tasks(queue), unpack(tasks)) > 0 then call('SADD', K.queues, queue) end
  end
  for _, one in ipairs(chosen) do
    local place, job = one[1], one[2]
    answers[place] = {not known[job[ID]]}
    if not known[job[ID]] then
      known[job[ID]] = true
      insert(job)
    end
  end
  for _, pair in ipairs(replace) do replace_by(pair[1], pair[2]) end
  return answers
end
