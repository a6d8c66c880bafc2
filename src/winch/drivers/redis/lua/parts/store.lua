-- store: jobs of any kind, all of a call or nothing. What storage/decide/unique.py says, in the order of the call.
--
-- A job is {id, envelope, queue, priority, delay, run_at, is_given, unique key, on_duplicate, keep, awaited (true:
-- alone; or what its header says), is_gated, takes over, unique within, max wait}, false where there is none; its envelope is put in by
-- `with_envelopes`.
local ID, ENVELOPE, NEW_QUEUE, NEW_PRIORITY, DELAY, RUN_AT, GIVEN, KEY, ON_DUPLICATE = 1, 2, 3, 4, 5, 6, 7, 8, 9
local NEW_KEEP, AWAITED_BY, HAS_GATES, TAKES_OVER, WITHIN, MAX_WAIT = 10, 11, 12, 13, 14, 15

-- The envelopes are ARGV[2…], in the order of the jobs.
local function with_envelopes(jobs)
  for place, job in ipairs(jobs) do job[ENVELOPE] = ARGV[1 + place] end
  return jobs
end

local function due_at(job)
  local due = job[DELAY] and now + job[DELAY] or job[RUN_AT] or nil
  return due and due > now and due or nil
end

-- The jobs that exist already: id -> true. And an id that is not allowed, if there is one.
local function known_of(jobs, is_repeat)
  local known, times, ids = {}, {}, {}
  for i, job in ipairs(jobs) do
    times[job[ID]] = (times[job[ID]] or 0) + 1
    ids[i] = job[ID]
  end
  for _, id in ipairs(ids) do
    known[id] = call('HEXISTS', K.env, id) == 1
    if A.in_cluster and not known[id] then  -- from a shard it may have gone home since
      known[id] = call('HEXISTS', K.leaving, id) == 1 or (call('ZSCORE', K.away, id) and true)
    end
  end
  for _, job in ipairs(jobs) do
    local is_there = known[job[ID]] or times[job[ID]] > 1
    if is_there and not (job[GIVEN] or is_repeat) then return known, job[ID] end
  end
  return known, nil
end

-- The job that holds a unique key, and its state; nil where the job is final and holds the key for a time.
local function holder_of_key(job)
  local holder = call('HGET', K.uniq, job[KEY])
  local live = holder and load(holder)
  if live then return holder, live.s end
  local kept = job[WITHIN] and call('HGET', K.kept, job[KEY])
  if not kept then return nil, nil end
  kept = read(kept)
  local j = kept[2] > now and load(kept[1])
  return j and FINAL[j.s] and j.id or nil, nil
end

-- What becomes of each: answers where that is decided; {place, job} to store; {holder, job} to replace;
-- key -> the running job that loses it to one that is stored.
local function planned(jobs, known)
  local answers, chosen, mine, replace, taken_over, is_refused = {}, {}, {}, {}, {}, false
  for place, job in ipairs(jobs) do
    local key, id, holder, state = job[KEY], job[ID], nil, nil
    if key and not taken_over[key] then holder, state = holder_of_key(job) end
    if state == 'running' and holder ~= id and job[TAKES_OVER] and not known[id] then
      taken_over[key] = holder
      holder = nil
    end
    if known[id] then
      answers[place] = {false}
    elseif not key or holder == id then
      chosen[#chosen + 1] = {place, job}
    elseif not holder and (not mine[key] or chosen[mine[key]][2][ID] == id) then
      mine[key] = mine[key] or #chosen + 1
      chosen[#chosen + 1] = {place, job}
    else
      local is_replaced = false
      if job[ON_DUPLICATE] == 'replace' or job[ON_DUPLICATE] == 'debounce' then
        if not holder then
          local first = chosen[mine[key]][2]
          local envelope, other = read(first[ENVELOPE]), read(job[ENVELOPE])
          envelope[VERSION], envelope[3], envelope[PRIORITY] = other[VERSION], other[3], other[PRIORITY]
          first[ENVELOPE], first[NEW_PRIORITY] = pack(envelope), job[NEW_PRIORITY]
          first[DELAY], first[RUN_AT] = job[DELAY], job[RUN_AT]
          is_replaced = true
        elseif state and MAY.replace[state] then
          replace[#replace + 1] = {holder, job}
          is_replaced = true
        end
      end
      is_refused = is_refused or (job[ON_DUPLICATE] ~= 'return' and not is_replaced)
      answers[place] = {false, holder or chosen[mine[key]][2][ID], is_replaced}
    end
  end
  return answers, chosen, replace, is_refused, taken_over
end

-- All but the envelope and the id, which are written for all jobs of the call at once.
local function insert(job)
  local id, queue, due = job[ID], job[NEW_QUEUE], due_at(job)
  if job[KEY] then
    call('HSET', K.uniq, job[KEY], id)
    call('HSET', K.ukey, id, job[KEY])
  end
  if job[KEY] and job[WITHIN] then
    local till = string.format('%d', now + job[WITHIN])
    call('HSET', K.kept, job[KEY], pack({id, now + job[WITHIN]}))
    call('ZADD', K.kept_until, till, job[KEY])
  end
  if job[NEW_KEEP] then call('HSET', K.keep, id, string.format('%d', job[NEW_KEEP])) end
  local env = job[HAS_GATES] and read(job[ENVELOPE])
  local number = env and join(id, env, nil) or nil
  if due then
    call('HSET', K.st, id, pack({s = 'scheduled', t = due, N = number}))
    call('ZADD', K.scheduled(queue), string.format('%d', due), id)
    if due - now < 2000000 then is_due = true end
  else
    local key = string.format('%d', now - head_start(queue, job[NEW_PRIORITY]))
    if number then call('HSET', K.st, id, pack({N = number})) end
    if env then stand(id, env, key) else call('ZADD', K.ready(queue), key, id) end
    ring(queue)
  end
  event(id, 'enqueued', due and 'scheduled' or 'ready', nil, nil, nil, 0)
end

local function replace_by(id, job)
  local j = load(id)
  local was, other, due = j.s, read(job[ENVELOPE]), due_at(job)
  if due and job[MAX_WAIT] then
    due = math.min(due, j.created + job[MAX_WAIT])
    due = due > now and due or nil
  end
  leave(j)
  j.s, j.t, j.a, j.w = due and 'scheduled' or 'ready', due or now, 0, nil
  j.env[VERSION], j.env[3], j.env[PRIORITY] = other[VERSION], other[3], other[PRIORITY]
  remember(j, {what = 'replaced', at = now})
  save_env(j)
  -- A job that waits where it waited is no event: its state is the same.
  local usual = keeps_events
  keeps_events = usual and was ~= j.s
  enter(j, 'replaced', nil, nil)
  keeps_events = usual
end

-- Store the jobs. Answers {is_new, holder, is_replaced} for each; or nil and an id that came twice, and
-- nothing is stored; or nil, nil and a family of gates that is at home, and nothing is. `names`: queue -> tasks.
local function store(jobs, names, is_repeat)
  local known, twice = known_of(jobs, is_repeat)
  if twice then return nil, twice end
  if A.part and A.part > 0 then
    for _, job in ipairs(jobs) do
      local gone = not known[job[ID]] and job[HAS_GATES] and shut_of(gates().uses(read(job[ENVELOPE])[OPTIONS]))
      if gone then return nil, nil, gone end
    end
  end
  local answers, chosen, replace, is_refused, taken_over = planned(jobs, known)
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
  local created, envelopes, ids, awaited = pack(now), {}, {}, {}
  for _, holder in pairs(taken_over) do
    local j = load(holder)
    j.env[UNIQUE] = false
    save_env(j)
    call('HDEL', K.ukey, holder)
  end
  for _, one in ipairs(chosen) do
    local place, job = one[1], one[2]
    local id = job[ID]
    answers[place] = {not known[id]}
    if not known[id] then
      known[id] = true
      insert(job)
      envelopes[#envelopes + 1], envelopes[#envelopes + 2] = id, created .. job[ENVELOPE]
      ids[#ids + 1], ids[#ids + 2] = '0', id
      if job[AWAITED_BY] and await(job[AWAITED_BY]) then awaited[#awaited + 1] = id end
    end
  end
  write('HSET', K.env, envelopes)
  write('ZADD', K.ids, ids)
  write('SADD', K.awaited, awaited)
  for _, pair in ipairs(replace) do replace_by(pair[1], pair[2]) end
  return answers
end
