-- heads: how many ready jobs queues have, and the first of them. What a claim over several parts is planned by.
-- A:      queues, count; gated: whether it matters that there are jobs with gates or a tenant; tasks: name -> true, or nil for
--         any: only jobs of these are among the first, all are counted
-- Return: for each queue: {number of jobs without tenants, {id, sort key, …}, number of others, how many more may run or -1, 1 where
--         its order is strict, how many of the first number have gates}
-- Keys:   ready, gated, tenanted, paused, caps, strict, used, tasks, env
-- flags:  no-writes
-- parts:  tasks
-- The first jobs of a set. Of a queue with tasks that the worker does not know, so many are looked at: MOST_UNKNOWN.
local MOST_UNKNOWN = 1000
local function first_of(key, count, is_some)
  if not is_some then return call('ZRANGE', key, 0, count - 1, 'WITHSCORES') end
  local first, at, step = {}, 0, 50
  while #first < 2 * count and at < MOST_UNKNOWN do
    local found, ids = call('ZRANGE', key, at, at + step - 1, 'WITHSCORES'), {}
    for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
    for i, e in ipairs(fetch('HMGET', K.env, ids)) do
      if #first < 2 * count and e and A.tasks[task_of(e)] then
        first[#first + 1], first[#first + 2] = ids[i], found[2 * i]
      end
    end
    if #ids < step then break end
    at = at + step
  end
  return first
end

local function merged(a, b, count)
  local found, i, k = {}, 1, 1
  while #found < 2 * count and (a[i] or b[k]) do
    local is_a = a[i] and (not b[k] or tonumber(a[i + 1]) < tonumber(b[k + 1])
      or (tonumber(a[i + 1]) == tonumber(b[k + 1]) and a[i] < b[k]))
    local from, at = is_a and a or b, is_a and i or k
    found[#found + 1], found[#found + 2] = from[at], from[at + 1]
    if is_a then i = i + 2 else k = k + 2 end
  end
  return found
end

local out, has_rules = {}, call('EXISTS', K.caps, K.strict) > 0
for i, queue in ipairs(A.queues) do
  local key, first, others = K.ready(queue), {}, 0
  local number = call('ZCARD', key)
  -- Jobs with gates and plain ones are one line, unless tenants have their turns.
  local gated = A.gated and call('ZCARD', K.gated(queue)) or 0
  if A.gated then others = call('ZCARD', K.tenanted(queue)) end
  if others > 0 then
    others = others + gated
    gated = 0
  end
  if number + gated + others > 0 and call('HEXISTS', K.paused, queue) == 1 then number, gated, others = 0, 0, 0 end
  local is_some = A.count > 0 and number + gated > 0 and is_mixed(queue)
  if number > 0 and A.count > 0 then first = first_of(key, A.count, is_some) end
  if gated > 0 and A.count > 0 then
    first = merged(first, first_of(K.gated(queue), A.count, is_some), A.count)
  end
  number = number + gated
  local room, is_strict = -1, 0
  if has_rules then
    local most = tonumber(call('HGET', K.caps, queue) or nil)
    if most then room = math.max(0, most - tonumber(call('HGET', K.used, 'queue:' .. queue) or 0)) end
    is_strict = call('SISMEMBER', K.strict, queue)
  end
  out[i] = {number, first, others, room, is_strict, gated}
end
return out
