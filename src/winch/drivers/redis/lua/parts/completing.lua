-- completing: running -> completed, for jobs that return a result and nothing else: all of a call together, without
-- their envelopes. What a claim held of gates stands in it.

-- Completes these claims. Answers: the answer to each, nil where its claim is not live; the places of those that are to
-- end one by one; what those that ended held: {id, uses, is_ended}.
local function complete(ids, tokens, results)
  local answers, ended, states, by_session, apart, ends = {}, {}, {}, {}, {}, {}
  local runs, sts = fetch('HMGET', K.run, ids), fetch('HMGET', K.st, ids)
  local claims, made, taken, counted = {}, {}, {}, {}

  -- A claim, and the gates that it passed: nil where it holds nothing, false where its end is to be counted by a scope or
  -- is not known from the claim.
  local function read_claim(r)
    local claim = read(r)
    if claim[5] then
      claim.uses, claim.shared = not claim[7] and claim[6] or false, gates().shared(claim[6])
      for i, use in ipairs(claim.uses or {}) do claim.uses[i] = {key = use[1], kind = use[2], weight = use[3]} end
    end
    claims[r] = claim
    return claim
  end

  -- Jobs of one claim that had the same state have the same one but for their result: made once.
  local function state_after(claim, s, result)
    local of_claim = made[claim[1]]
    if not of_claim then
      of_claim = {}
      made[claim[1]] = of_claim
    end
    local of_state = of_claim[s]
    if not of_state then
      of_state = {whole = {}, attempt = 1}
      if s then
        local j = read(s)
        of_state.before, of_state.attempt = j, (j.a or 0) + 1
        j.n = math.max(next_number(j.n or 0), claim[3])
        j.s, j.a, j.x, j.k, j.e, j.f = 'completed', of_state.attempt, claim[2], claim[3], claim[1], now
        j.w, j.u = nil, j.u or nil
      else
        of_state.head = pack('s') .. pack('completed') .. pack('a') .. pack(1) .. pack('n') .. pack(claim[3])
          .. pack('x') .. pack(claim[2]) .. pack('k') .. pack(claim[3]) .. pack('e') .. pack(claim[1])
          .. pack('f') .. pack(now)
      end
      of_claim[s] = of_state
    end
    local whole = of_state.whole[result]
    if not whole then
      local j = of_state.before
      if j then
        j.R = result or nil
        whole = pack(j)
      else
        whole = result and '\136' .. of_state.head .. pack('R') .. pack(result) or '\135' .. of_state.head
      end
      of_state.whole[result] = whole
    end
    return whole, of_state
  end

  for i = 1, #ids do
    local id, r = ids[i], runs[i]
    local claim = r and not taken[id] and (claims[r] or read_claim(r))
    if claim and claim[1] == tokens[i] then
      taken[id], answers[i] = true, 'took'
      if claim.uses == false then
        apart[#apart + 1] = i
      else
        local state, about = state_after(claim, sts[i], results[i])
        ended[#ended + 1] = id
        states[#states + 1], states[#states + 2] = id, state
        local mine = by_session[claim[2]]
        if not mine then
          mine = {}
          by_session[claim[2]] = mine
        end
        mine[#mine + 1] = id
        if about.before and about.before.q then call('SREM', K.cancelling, id) end
        if claim.uses then
          ends[#ends + 1] = {
            id = id, uses = claim.uses, had = true, is_ended = true, shared = claim.shared, session = claim[2],
          }
          add(counted, claim[4], id)
        end
        if keeps_events then
          event(id, 'finished', 'completed', claim[1], claim[1], claim[2], about.attempt)
        end
      end
    end
  end
  if #ended == 0 then return answers, apart, ends end
  write('HDEL', K.run, ended)
  write('HSET', K.st, states)
  for session, mine in pairs(by_session) do write('SREM', K.held(session), mine) end
  -- What they had of their queue's concurrency.
  for queue, some in pairs(counted) do
    local gate, count = 'queue:' .. queue, 0
    for at = 1, #some, STEP do
      count = count + call('HDEL', K.permits(gate), unpack(some, at, math.min(at + STEP - 1, #some)))
    end
    if count > 0 then
      if call('HINCRBY', K.used, gate, -count) <= 0 then call('HDEL', K.used, gate) end
      rings[queue] = (rings[queue] or 0) + count
    end
  end
  -- One look for all that a plain job has not.
  local is_plain = call('EXISTS', K.ukey, K.keep, K.awaited, K.unfinished) == 0
  if not is_plain and call('EXISTS', K.ukey) == 1 then
    for i, key in ipairs(fetch('HMGET', K.ukey, ended)) do
      if key then
        call('HDEL', K.uniq, key)
        call('HDEL', K.ukey, ended[i])
      end
    end
  end
  local usual = string.format('%d', now + KEEP.completed)
  if not is_plain and call('EXISTS', K.awaited) == 1 then
    local awaited, arrived = {}, {}
    for i, is_awaited in ipairs(fetch('SMISMEMBER', K.awaited, ended)) do
      if is_awaited == 1 then awaited[#awaited + 1], arrived[#arrived + 1] = ended[i], 'job:' .. ended[i] end
    end
    if #awaited > 0 then
      write('SREM', K.awaited, awaited)
      write('RPUSH', K.rechecks, arrived)
      is_due = true
    end
  end
  if not is_plain and call('EXISTS', K.unfinished) == 1 then
    -- Those that are waited for together have ids that begin alike, which no other job has.
    local count, keys, counts = {}, {}, {}
    for _, id in ipairs(ended) do
      local begin = string.sub(id, 1, 30)
      count[begin] = (count[begin] or 0) + 1
    end
    for begin, n in pairs(count) do keys[#keys + 1], counts[#counts + 1] = 'all:' .. begin, n end
    for i, left in ipairs(fetch('HMGET', K.unfinished, keys)) do
      if left then fewer(keys[i], counts[i]) end
    end
  end
  if not is_plain and call('EXISTS', K.keep) == 1 then
    local kept = fetch('HMGET', K.keep, ended)
    for i, id in ipairs(ended) do drop(id, kept[i] and string.format('%d', now + kept[i]) or usual) end
  else
    for _, id in ipairs(ended) do drop(id, usual) end
  end
  return answers, apart, ends
end

-- Ends what `complete` left, and the other outcomes of the call, in the order of the call: a breaker counts them. Returns
-- the answers to the others.
local function end_others(ids, results, apart, others, end_claim)
  local answers, done = {}, 1
  local function end_apart(upto)
    while apart[done] and apart[done] <= upto do
      local i = apart[done]
      end_claim(load(ids[i]), {
        to = 'completed', what = 'completed', counts = true, result = results[i] or nil, why = 'completed',
      })
      done = done + 1
    end
  end
  local ending = {}
  for _, i in ipairs(apart) do ending[#ending + 1] = ids[i] end
  for _, o in ipairs(others) do ending[#ending + 1] = o.id end
  read_ahead(ending)
  for i, o in ipairs(others) do
    end_apart(o.behind)
    local j = held_by({o.id, o.token})
    if j then
      end_claim(j, o)
      answers[i] = 'took'
    else
      answers[i] = look_up(o.id, o.token, o.to, o.what)
    end
  end
  end_apart(#ids)
  return answers
end
