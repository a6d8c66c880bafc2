-- finish: running -> completed | retrying | scheduled | blocked | ready | cancelled | dead.
-- Fenced by (id, token).
-- A:      now; done: {ids, tokens, results} of plain completions (result false: none);
--         others: {id, token, to, what, delay, counts, result, error, reason, log, fingerprint, trace,
--         waits: {key, is_enough}, timeout, leaves_turn, brake, why: the end in a few words, for jobs that are held because of it}
-- Return: {answers to done, answers to others}: took | already | lost. A number instead of the first:
--         all of done took
-- Keys:   run, st, env, held, drop, keep, uniq, ukey, cancelling, ready, scheduled, retrying, …
-- flags:  allow-oom
-- parts:  put record waits fingerprint ending

local ids, tokens, results = A.done[1], A.done[2], A.done[3]
local answers, ended, states, by_session, changed = {}, {}, {}, {}, {}
local runs, sts = fetch('HMGET', K.run, ids), fetch('HMGET', K.st, ids)
local heads, taken = {}, {}

-- Jobs of one claim that had never run before have the same state but for their result: made once.
local function state_after(r, result)
  local made = heads[r]
  if not made then
    local claim = read(r)
    made = {claim = claim, whole = {}}
    made.head = pack('s') .. pack('completed') .. pack('a') .. pack(1) .. pack('n') .. pack(claim[3])
      .. pack('x') .. pack(claim[2]) .. pack('k') .. pack(claim[3]) .. pack('e') .. pack(claim[1])
      .. pack('f') .. pack(now)
    heads[r] = made
  end
  local whole = made.whole[result]
  if not whole then
    whole = result and '\136' .. made.head .. pack('R') .. pack(result) or '\135' .. made.head
    made.whole[result] = whole
  end
  return made.claim, whole
end

for i = 1, #ids do
  local id, r = ids[i], runs[i]
  if r and not taken[id] then
    local claim, state = state_after(r, results[i])
    if claim[1] == tokens[i] then
      taken[id], answers[i] = true, 'took'
      if sts[i] or claim[5] then  -- changed before, or it holds permits
        changed[#changed + 1] = i
      else
        ended[#ended + 1] = id
        states[#states + 1], states[#states + 2] = id, state
        local mine = by_session[claim[2]]
        if not mine then
          mine = {}
          by_session[claim[2]] = mine
        end
        mine[#mine + 1] = id
        if keeps_events then
          event(id, 'finished', 'completed', claim[1], claim[1], claim[2], 1)
        end
      end
    end
  end
end
if #ended > 0 then
  write('HDEL', K.run, ended)
  write('HSET', K.st, states)
  for session, mine in pairs(by_session) do write('SREM', K.held(session), mine) end
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
    drops[usual] = ended
  end
end
for _, i in ipairs(changed) do
  finish(load(ids[i]), {
    to = 'completed', what = 'completed', counts = true, result = results[i] or nil, why = 'completed',
  })
end
local told = #ids
for i = 1, #ids do
  if not answers[i] then answers[i], told = look_up(ids[i], tokens[i], 'completed'), answers end
end

local others = {}
for i, o in ipairs(A.others) do
  local j = held_by({o.id, o.token})
  if j then
    finish(j, o)
    others[i] = 'took'
  else
    others[i] = look_up(o.id, o.token, o.to, o.what)
  end
end
done()
return {told, others}
