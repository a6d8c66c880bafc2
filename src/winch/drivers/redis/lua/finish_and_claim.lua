-- finish_and_claim: running -> what finish.lua says, and ready -> running for the next members of FIFO keys.
-- A:      now; others: as for finish; session, token, queues, limit; tasks: name -> true, or nil for any;
--         away: queue -> {id, sort key} of the first plain job in other parts of a cluster
-- Return: {answers, {now, then for each queue that gave some: queue, ids, envelopes, states}}
-- Keys:   as finish; alive, paused, caps, strict, ready, gated, tenanted
-- flags:  allow-oom
-- parts:  put record waits fingerprint ending
local answers, keys, woken = {}, {}, {}

-- Who is woken for a member that takes its turn is known apart: a member that is claimed here wakes no worker.
local function end_claim(j, o)
  local before, mine = rings, {}
  rings = mine
  finish(j, o)
  rings = before
  local left = {}
  if FINAL[j.s] then
    for _, use in ipairs(gates().uses(j.env[OPTIONS])) do
      if use.kind == 'fifo' then left[#left + 1] = use.key end
    end
  end
  if #left == 1 and not woken[left[1]] and not o.brake then
    keys[#keys + 1], woken[left[1]] = left[1], mine
  else
    for queue, jobs in pairs(mine) do rings[queue] = (rings[queue] or 0) + jobs end
  end
end

for i, o in ipairs(A.others) do
  local j = held_by({o.id, o.token})
  if j then
    end_claim(j, o)
    answers[i] = 'took'
  else
    answers[i] = look_up(o.id, o.token, o.to, o.what)
  end
end

-- The next members that have no other gate and no tenant, by id.
local heads, count = {}, 0
if call('ZSCORE', K.alive, A.session) then
  for _, key in ipairs(keys) do
    local id = call('HEXISTS', K.turn, key) == 0 and call('ZRANGE', K.members(key), 0, 0)[1]
    local j = id and load(id)
    if j and j.s == 'ready' and not j.env[TENANT] and #gates().uses(j.env[OPTIONS]) == 1 then
      heads[id], count = {key = key, j = j}, count + 1
    end
  end
end

local function is_known(id)
  if not A.tasks then return true end
  local _, env = read_envelope(call('HGET', K.env, id))
  return env and A.tasks[env[1]]
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

local out, free = {now}, math.min(A.limit, count)
for _, queue in ipairs(A.queues) do
  if free <= 0 then break end
  if call('HEXISTS', K.paused, queue) == 0 then
    -- Between tenants turns decide, not sort keys, and a rule of the queue is read by claims.
    if call('EXISTS', K.tenanted(queue)) == 1 then break end
    if call('HEXISTS', K.caps, queue) == 1 or call('SISMEMBER', K.strict, queue) == 1 then break end
    local key, plain = first_plain(queue)
    local ids, envelopes, states, is_stopped = {}, {}, {}, plain ~= nil
    local found = call('ZRANGE', K.gated(queue), 0, free - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      local id, at = found[i], tonumber(found[i + 1])
      local is_after = plain and (key < at or (key == at and plain < id))
      if is_after or not heads[id] or not is_known(id) then
        is_stopped = is_stopped or is_after or is_known(id)
        if is_stopped then break end
      else
        ids[#ids + 1] = id
      end
    end
    for i, id in ipairs(ids) do
      local head = heads[id]
      local s = call('HGET', K.st, id)
      if s then
        local j = read(s)
        if j.q then call('SADD', K.cancelling, id) end  -- it runs to undo what it did
        if j.p or j.l then  -- a new claim starts without progress and log
          j.p, j.l = nil, nil
          s = pack(j)
          call('HSET', K.st, id, s)
        end
      end
      call('HSET', K.turn, head.key, id)
      call('ZREM', K.gated(queue), id)
      call('HSET', K.run, id, pack({A.token, A.session, now, queue, true}))
      call('SADD', K.held(A.session), id)
      event(id, 'claimed', 'running', A.token, nil, A.session, head.j.a + 1)
      envelopes[i], states[i], woken[head.key] = call('HGET', K.env, id), s, nil
    end
    if #ids > 0 then
      free = free - #ids
      out[#out + 1], out[#out + 2] = queue, ids
      out[#out + 1], out[#out + 2] = envelopes, states
    end
    if is_stopped then break end
  end
end
for _, mine in pairs(woken) do
  for queue, jobs in pairs(mine) do rings[queue] = (rings[queue] or 0) + jobs end
end
done()
return {answers, out}
