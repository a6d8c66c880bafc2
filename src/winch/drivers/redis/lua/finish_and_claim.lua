-- finish_and_claim: running -> what finish.lua says, and ready -> running for the next members of FIFO keys and the next
-- jobs of limits that have room again.
-- A:      now; done, others: as for finish; session, token, queues, limit; tasks: name -> true, or nil for any;
--         at_once: how many jobs the session runs at once, or nil; away: queue -> {id, sort key} of the first plain job in
--         other parts of a cluster
-- Return: {answers to done or a number, answers to others, {now, then for each queue that gave some: queue, ids, envelopes,
--         states}}
-- Keys:   as finish; alive, paused, caps, strict, ready, gated, tenanted
-- flags:  allow-oom
-- parts:  put starting record homes waits fingerprint ending completing
local ids, tokens, results = A.done[1], A.done[2], A.done[3]
local answers, apart, ends = complete(ids, tokens, results)
local left = leave_gates(ends)
local keys, is_key, limits = {}, {}, {}

-- The limits of a job that is final, and the FIFO key that it has left, where it is the only one.
local function note_key(uses)
  local key
  for _, use in ipairs(uses) do
    if use.kind == 'limit' then limits[use.key] = true end
  end
  for _, use in ipairs(uses) do
    if use.kind == 'fifo' then
      if key then return end
      key = use.key
    end
  end
  if key and not is_key[key] then keys[#keys + 1], is_key[key] = key, true end
end

local function end_claim(j, o)
  finish(j, o)
  if FINAL[j.s] and not o.brake then note_key(gates().uses(j.env[OPTIONS])) end
end

for _, one in ipairs(ends) do note_key(one.uses) end
local others, done_answers = end_others(ids, results, apart, A.others, end_claim), #ids
for i = 1, #ids do
  if not answers[i] then answers[i], done_answers = look_up(ids[i], tokens[i], 'completed'), answers end
end

-- The next members that have no other gate and no tenant, by id.
local heads, count = {}, 0
local function note_head(key, id, env, e, s)
  local uses = gates().uses(env[OPTIONS])
  if not env[TENANT] and #uses == 1 and not shut_of(uses) then
    heads[id], count = {key = key, env = env, e = e, s = s, uses = uses}, count + 1
  end
end

local is_alive = call('ZSCORE', K.alive, A.session)
if is_alive then
  local found, key_of = {}, {}
  for i, turn in ipairs(fetch('HMGET', K.turn, keys)) do
    local key = keys[i]
    local first = not turn and (left[key] and left[key].first or call('ZRANGE', K.members(key), 0, 0)[1])
    if first and admitted[first] then
      local one = admitted[first]
      note_head(key, first, one.env, one.e, one.s)
    elseif first then
      found[#found + 1], key_of[first] = first, key
    end
  end
  local es, ss = read_ahead(found)
  for i, id in ipairs(found) do
    local j = load(id)
    if j and j.s == 'ready' then note_head(key_of[id], id, j.env, es[i], ss[i]) end
  end
end

-- Jobs of the line of gated jobs that were read: id -> fields of the envelope, envelope, state.
local rows, looks, specs, AT_ONCE = {}, {}, {}, 25
local function read_rows(found, from)
  local some = {}
  for i = from, math.min(#found, from + 2 * AT_ONCE - 1), 2 do
    if not heads[found[i]] then some[#some + 1] = found[i] end
  end
  local es, ss, uses = fetch('HMGET', K.env, some), fetch('HMGET', K.st, some), {}
  for i, id in ipairs(some) do
    local _, env = read_envelope(es[i])
    local row = {env = env, e = es[i], s = ss[i], uses = env and gates().uses(env[OPTIONS]) or {}}
    local use = row.uses[1]
    -- It continues a limit whose permits came back in this call, and has no other gate.
    if use and #row.uses == 1 and limits[use.key] and not shut_of(row.uses) then
      row.use, uses[#uses + 1] = use, use
    end
    rows[id] = row
  end
  gates().look_at_all(uses, looks, specs)
end

local function is_known(id)
  if not A.tasks then return true end
  local one = heads[id] or rows[id]
  if one then return one.env and A.tasks[one.env[1]] end
  local _, env = read_envelope(call('HGET', K.env, id))
  return env and A.tasks[env[1]]
end

-- The job at this place in the line, where its turn or its permits can be had now; takes the permits.
local function next_of(id)
  local row = rows[id]
  if heads[id] or not row or not row.use then return heads[id] end
  local look = looks[row.use.key]
  if not gates().passes(look, row.use, id, 0) then return nil end
  gates().grant(look, row.use, id, 0)
  return row
end

-- The first plain job of a queue that a claim would take: its sort key and its id.
local function first_plain(queue)
  local other, at, step = A.away and A.away[queue], 0, 1
  while true do
    local found = call('ZRANGE', K.ready(queue), at, at + step - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      if is_known(found[i]) then
        local id, key = found[i], tonumber(found[i + 1])
        if other and (other[2] < key or (other[2] == key and other[1] < id)) then break end
        return key, id
      end
    end
    if #found == 0 or other then return other and other[2], other and other[1] end
    at, step = at + step, 50
  end
end

local is_limited = is_alive and next(limits) ~= nil
local out, free = {now}, is_limited and A.limit or math.min(A.limit, count)
for _, queue in ipairs(A.queues) do
  if free <= 0 then break end
  if call('HEXISTS', K.paused, queue) == 0 then
    -- Between tenants turns decide, not sort keys, and a rule of the queue is read by claims.
    if call('EXISTS', K.tenanted(queue)) == 1 then break end
    if call('HEXISTS', K.caps, queue) == 1 or call('SISMEMBER', K.strict, queue) == 1 then break end
    local key, plain = first_plain(queue)
    local chosen, envelopes, states, held, turns, is_stopped = {}, {}, {}, {}, {}, plain ~= nil
    local found = call('ZRANGE', K.gated(queue), 0, free - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      local id, at = found[i], tonumber(found[i + 1])
      if is_limited and not heads[id] and not rows[id] then read_rows(found, i) end
      local is_after = plain and (key < at or (key == at and plain < id))
      local knows = not is_after and is_known(id)
      local head = knows and next_of(id)
      if not head then
        is_stopped = is_stopped or is_after or knows
        if is_stopped then break end
      else
        chosen[#chosen + 1] = id
        envelopes[#chosen], states[#chosen], held[#chosen] = head.e, head.s, head.uses
      end
    end
    if #chosen > 0 then
      for _, id in ipairs(chosen) do
        if heads[id] then turns[#turns + 1], turns[#turns + 2] = heads[id].key, id end
        -- A member that is claimed here wakes no worker.
        if admitted[id] then rings[queue] = rings[queue] - 1 end
      end
      write('HSET', K.turn, turns)
      gates().keep_all(looks)
      for _, look in pairs(looks) do look.is_used, look.is_owned = nil, nil end
      write('ZREM', K.gated(queue), chosen)
      states = start(queue, chosen, states, held)
      free = free - #chosen
      out[#out + 1], out[#out + 2] = queue, chosen
      out[#out + 1], out[#out + 2] = envelopes, states
    end
    if is_stopped then break end
  end
end
done()
return {done_answers, others, out}
