-- list_jobs: a stretch of jobs, newest id first, from the smallest set that holds them all.
-- A:      states: state -> true (empty: all), fingerprint, after, count, small (how many may be sorted)
-- Return: {ids, envelopes, states, claims, where to go on}; the last is empty at the end
-- Keys:   ids, pages, cancelled, dead, alike, run, queues, ready, gated, tenanted, scheduled, retrying, blocked, env, st
-- flags:  no-writes
-- parts:  pages
local function sets_of(states)
  local keys = {}
  for state in pairs(states) do
    if state == 'dead' or state == 'cancelled' then
      keys[#keys + 1] = {K[state], 'zset'}
    elseif state == 'running' then
      keys[#keys + 1] = {K.run, 'hash'}
    elseif state == 'completed' then
      return nil
    else
      for _, queue in ipairs(call('SMEMBERS', K.queues)) do
        keys[#keys + 1] = {K[state](queue), 'zset'}
        if state == 'ready' then
          keys[#keys + 1] = {K.gated(queue), 'zset'}
          keys[#keys + 1] = {K.tenanted(queue), 'zset'}
        end
      end
    end
  end
  return keys
end

local function by_id(key, count)
  return call('ZREVRANGEBYLEX', key, A.after and '(' .. A.after or '+', '-', 'LIMIT', 0, count or A.count)
end

-- Of all jobs there are. One that was deleted and stored anew may be on a page too.
local function all_by_id(count)
  local alone, paged = by_id(K.ids, count), newest_on_pages(A.after, count)
  if #paged == 0 then return alone end
  local page, i, j = {}, 1, 1
  while #page < count and (alone[i] or paged[j]) do
    local one, other = alone[i], paged[j]
    if one and (not other or one >= other) then
      page[#page + 1], i = one, i + 1
      if one == other then j = j + 1 end
    else
      page[#page + 1], j = other, j + 1
    end
  end
  return page
end

-- All of the sets sorted, where they are small enough for that.
local function sorted(keys, most)
  local size = 0
  for _, key in ipairs(keys) do size = size + call(key[2] == 'hash' and 'HLEN' or 'ZCARD', key[1]) end
  if size > (most or A.small) then return nil end
  local all, page = {}, {}
  for _, key in ipairs(keys) do
    local members = key[2] == 'hash' and call('HKEYS', key[1]) or call('ZRANGE', key[1], 0, -1)
    for _, id in ipairs(members) do
      if not A.after or id < A.after then all[#all + 1] = id end
    end
  end
  table.sort(all, function(a, b) return a > b end)
  for i = 1, math.min(A.count, #all) do page[i] = all[i] end
  return page
end

-- Jobs that something has become of. A long line of jobs that only wait has nothing in `st`, and is passed over
-- here, a few thousand at a time.
local function changed()
  local few = sorted({{K.st, 'hash'}}, 10 * A.small)
  if few then return few end
  local page = {}
  local seen = all_by_id(STEP)
  for i, state in ipairs(fetch('HMGET', K.st, seen)) do
    if state then page[#page + 1] = seen[i] end
    if #page == A.count then return page, seen[i] end
  end
  return page, seen[STEP]
end

local ids, after
if A.fingerprint then
  ids = by_id(K.alike(A.fingerprint))
elseif next(A.states) == nil then
  ids = all_by_id(A.count)
else
  local keys = sets_of(A.states)
  if keys and #keys == 1 and (keys[1][1] == K.dead or keys[1][1] == K.cancelled) then
    ids = by_id(keys[1][1])
  elseif not keys and not A.states.ready and not A.states.running then
    ids, after = changed()
  else
    ids = keys and sorted(keys) or all_by_id(A.count)
  end
end
after = after or #ids == A.count and ids[#ids] or ''
return {ids, fetch('HMGET', K.env, ids), fetch('HMGET', K.st, ids), fetch('HMGET', K.run, ids), after}
