-- claim: ready -> running, for a session that is live. Lowest sort key first, then the lower id.
-- A:      now; session, token, queues, limit; tasks: name -> true, or nil for any; gated: how many may be
--         under a scope (nil: plain jobs only); slots: how many are for free slots, the others are claimed ahead;
--         at_once: how many jobs the session runs at once, or nil
-- Return: {now, then for each queue that gave some: queue, ids, envelopes, states}; {now, 'more'}: nothing
--         yet, because so many were held; call again. Where the caller named jobs that are away, last of all: how
--         many of those have their turn before each
--         A queue with a concurrency is named by its gate, queue:NAME
-- Keys:   alive, paused, caps, strict, used, permits, tasks, ready, env, st, run, held, cancelling, events; with gates: see parts/draw.lua
-- flags:  allow-oom
-- parts:  put tasks starting rates scopes gates homes draw
local out = {now}
if not call('ZSCORE', K.alive, A.session) then return out end

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
    drawn = draw(queue, free, gated)
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
    local holds, none = drawn and drawn.holds or {}, {}
    if most then
      for i = 1, #ids do holds[i] = holds[i] or none end
    end
    local states = start(queue, ids, drawn and drawn.states or fetch('HMGET', K.st, ids), holds)
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
