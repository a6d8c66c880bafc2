-- claim: ready -> running, for a session that is live. Lowest sort key first, then the lower id.
-- A:      now; session, token, queues, limit; tasks: name -> true, or nil for any; gated: how many may be
--         under a scope (nil: plain jobs only)
-- Return: {now, then for each queue that gave some: queue, ids, envelopes, states}; {now, 'more'}: nothing
--         yet, because so many were held; call again. Where the caller named jobs that are away, last of all: how
--         many of those have their turn before each
--         A queue with a concurrency is named by its gate, queue:NAME
-- Keys:   alive, paused, caps, strict, used, permits, tasks, ready, env, st, run, held, cancelling, events; with gates: see parts/draw.lua
-- flags:  allow-oom
-- parts:  put rates scopes gates draw
local out = {now}
if not call('ZSCORE', K.alive, A.session) then return out end

-- The name of the task stands at the start of the envelope, behind 9 bytes of created and 1 of array.
local function task_of(e)
  local head = string.byte(e, 11) or 0  -- damaged: a task that no worker knows
  if head < 192 then return string.sub(e, 12, 11 + head - 160) end
  if head == 217 then return string.sub(e, 13, 12 + string.byte(e, 12)) end
  local is_read, _, env = pcall(read, e)
  return is_read and type(env) == 'table' and env[1] or ''
end

-- Only where the queue has had a task that this worker does not know is each job looked at.
local function is_mixed(queue)
  if not A.tasks then return false end
  for _, task in ipairs(call('SMEMBERS', K.tasks(queue))) do
    if not A.tasks[task] then return true end
  end
  return false
end

-- States that were read: true where who claims the job need not know it, because it says no more than that the
-- job was claimed before and given back unrun. Jobs that were enqueued, claimed and given back together have the
-- same state, byte for byte. Not in it are those that a claim changes.
local is_as_new = {}

local free, gated, is_more = A.limit, A.gated, false
for _, queue in ipairs(A.queues) do
  if free <= 0 then break end
  local key, ids, envelopes, drawn = K.ready(queue), {}, {}, nil
  -- Most queues are not paused and have no gates and no rule: that is seen by one look.
  local is_odd = call('EXISTS', K.paused, K.caps, K.strict, K.gated(queue), K.tenanted(queue)) > 0
  local most, whole = is_odd and tonumber(call('HGET', K.caps, queue) or nil), free
  local gate = most and 'queue:' .. queue
  if most then free = math.max(0, math.min(free, most - tonumber(call('HGET', K.used, gate) or 0))) end
  if is_odd and (call('HEXISTS', K.paused, queue) == 1 or free == 0) then
    ids = {}
  elseif is_odd and not gated and (most or call('SISMEMBER', K.strict, queue) == 1) then
    ids = {}  -- a claim of plain jobs leaves a queue with a rule alone
  elseif is_odd and gated and call('EXISTS', K.gated(queue), K.tenanted(queue)) > 0 then
    drawn = draw(queue, free, gated, task_of)
    ids, envelopes, gated = drawn.ids, drawn.envelopes, gated - drawn.scoped
    is_more = is_more or drawn.is_more
  elseif is_mixed(queue) then
    local at = 0
    while #ids < free do
      local window = call('ZRANGE', key, at, at + 499)
      if #window == 0 then break end
      local found = fetch('HMGET', K.env, window)
      for i, id in ipairs(window) do
        if #ids < free and A.tasks[task_of(found[i])] then
          ids[#ids + 1], envelopes[#envelopes + 1] = id, found[i]
        end
      end
      at = at + 500
    end
    if #ids > 0 then write('ZREM', key, ids) end
  else
    ids = call('ZRANGE', key, 0, free - 1)
    if #ids > 0 then
      call('ZREMRANGEBYRANK', key, 0, #ids - 1)
      envelopes = fetch('HMGET', K.env, ids)
    end
  end
  if #ids > 0 then
    local states = fetch('HMGET', K.st, ids)
    local claim, running = pack({A.token, A.session, now, queue}), {}
    local holding = (most or drawn) and pack({A.token, A.session, now, queue, true})
    for i = 1, #ids do
      running[2 * i - 1], running[2 * i] = ids[i], (most or drawn and drawn.holds[i]) and holding or claim
      local state = states[i]
      if state and is_as_new[state] == nil then
        local s = read(state)
        if s.q then call('SADD', K.cancelling, ids[i]) end  -- it runs to undo what it did
        if s.p or s.l then  -- a new claim starts without progress and log
          s.p, s.l = nil, nil
          states[i] = pack(s)
          call('HSET', K.st, ids[i], states[i])
        elseif not s.q then
          is_as_new[state] = (s.a or 0) == 0 and not s.t and not s.u and not s.h and (s.n or 0) < now
        end
      end
      if is_as_new[state] then states[i] = false end
    end
    write('HSET', K.run, running)
    write('SADD', K.held(A.session), ids)
    if keeps_events then
      for i, id in ipairs(ids) do
        local attempt = states[i] and (read(states[i]).a or 0) + 1 or 1
        event(id, 'claimed', 'running', A.token, nil, A.session, attempt)
      end
    end
    if most then
      local permits = {}
      for i = 1, #ids do permits[2 * i - 1], permits[2 * i] = ids[i], '1' end
      write('HSET', K.permits(gate), permits)
      call('HINCRBY', K.used, gate, #ids)
    end
    out[#out + 1], out[#out + 2] = gate or queue, ids
    out[#out + 1], out[#out + 2] = envelopes, states
    if drawn and A.away then out[#out + 1] = drawn.behind end
  end
  free = whole - #ids
end
if gated then done() end
if is_more and #out == 1 then out[2] = 'more' end
return out
