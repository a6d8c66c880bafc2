-- enqueue: -> ready, for plain jobs: all of the call or nothing. Others go through enqueue_special.
-- A:      now; confirm; names: queue -> tasks; groups: {queue, priority, the key by which
--         they are waited for together or false, ids}. ARGV[2…]: envelopes, in order
-- Return: '' when stored; or an id that was there or came twice, and nothing is stored
-- Keys:   env, ids, ready, unfinished, queues, tasks, waiting, bell, events
-- flags:
-- parts:  put
-- A repeat writes nothing else, and WAIT waits for what its own connection wrote.
if A.confirm then call('HSET', K.meta, 'confirmed_at', string.format('%d', now)) end

local created, before = pack(now), 1
-- `ids` first: its answer tells whether all are new, and what it added is taken back if not.
for place, group in ipairs(A.groups) do
  local ids, all = group[4], {}
  for i = 1, #ids do
    local at = 2 * i
    all[at - 1], all[at] = '0', ids[i]
  end
  local added = 0
  for i = 1, #all, STEP do
    added = added + call('ZADD', K.ids, 'NX', unpack(all, i, math.min(i + STEP - 1, #all)))
  end
  if added < #ids then
    local twice, seen = nil, {}
    for earlier = 1, place do
      for _, id in ipairs(A.groups[earlier][4]) do
        if call('HEXISTS', K.env, id) == 1 then
          twice = twice or id
        else
          if seen[id] then twice = twice or id end
          seen[id] = true
          call('ZREM', K.ids, id)
        end
      end
    end
    return twice
  end
end
for queue, tasks in pairs(A.names) do
  if call('SADD', K.tasks(queue), unpack(tasks)) > 0 then call('SADD', K.queues, queue) end
end
for _, group in ipairs(A.groups) do
  local queue, ids = group[1], group[4]
  local key = string.format('%d', now - group[2] * HEAD_START)
  local stored, ready = {}, {}
  for i = 1, #ids do
    local id, at = ids[i], 2 * i
    stored[at - 1], stored[at] = id, created .. ARGV[before + i]
    ready[at - 1], ready[at] = key, id
  end
  write('HSET', K.env, stored)
  write('ZADD', K.ready(queue), ready)
  if group[3] then call('HINCRBY', K.unfinished, group[3], #ids) end
  rings[queue] = (rings[queue] or 0) + #ids
  before = before + #ids
  if keeps_events then
    for _, id in ipairs(ids) do event(id, 'enqueued', 'ready', nil, nil, nil, 0) end
  end
end
done()
return ''
