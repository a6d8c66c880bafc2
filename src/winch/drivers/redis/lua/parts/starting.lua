-- starting: ready -> running, for jobs that were chosen: their claims, and what a claim takes away.

-- States that were read: true where the claimer need not know it, because it says no more than that the
-- job was claimed before and given back unrun. Jobs that were enqueued, claimed and given back together have the
-- same state, byte for byte. Not in it are those that a claim changes.
local is_as_new = {}

-- What a claim notes of the gates that its job has passed, so that its end needs no envelope: {key, kind, weight, at_once} for
-- each, and true where a scope has to count the end. For limits this is the permit. at_once: see parts/gates.lua.
local function noted(uses)
  local found, is_counted = {}, nil
  for i, use in ipairs(uses) do
    is_counted = is_counted or use.breaker and true or use.kind == 'scope' or nil
    found[i] = {use.key, use.kind, use.weight, use.at_once}
  end
  return found, is_counted
end

-- Writes the claims of these jobs of one queue: token, session, claimed_at, queue, whether it holds permits, and what it
-- has noted of gates. `held`: the gates of each that holds permits or a turn, empty where its
-- queue counts it and it has no gates, false where it holds nothing. Answers the states that the claimer has to know.
local function start(queue, ids, states, held)
  local claim, running, holding = pack({A.token, A.session, now, queue}), {}, {}
  for i = 1, #ids do
    local uses = held[i]
    if uses and not holding[uses] then
      local passed, is_counted = noted(uses)
      holding[uses] = pack({A.token, A.session, now, queue, true, passed, is_counted})
    end
    running[2 * i - 1], running[2 * i] = ids[i], uses and holding[uses] or claim
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
  return states
end
