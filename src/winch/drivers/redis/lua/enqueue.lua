-- enqueue: -> ready, for plain jobs: all of the call or nothing. Others go through enqueue_special.
-- A:      now; confirm; names: queue -> tasks; groups: {queue, priority, the key by which
--         they are waited for together or false, ids}. ARGV[2…]: envelopes, in order
-- Return: '' when stored; or an id that was there, and nothing is stored. No id comes twice in a call.
-- Keys:   env, ids, pages, ready, unfinished, queues, tasks, waiting, bell, events
-- flags:
-- parts:  put pages
-- A repeat writes nothing else, and WAIT waits for what its own connection wrote.
if A.confirm then call('HSET', K.meta, 'confirmed_at', string.format('%d', now)) end

for _, group in ipairs(A.groups) do
  for i, there in ipairs(fetch('HMGET', K.env, group[4])) do
    if there then return group[4][i] end
  end
end
local created, before = pack(now), 1
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
  put_on_pages(ids)
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
