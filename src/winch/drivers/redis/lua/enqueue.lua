-- enqueue: -> ready, for plain jobs: all of the call or nothing. Others go through enqueue_special.
-- A:      now; confirm; replicas; names: queue -> tasks; groups: {queue, priority, the key by which
--         they are waited for together or false, ids}; begin: of all ids, where they begin alike.
--         ARGV[2…]: envelopes, in order
-- Return: the moment when stored; or an id that was there, and nothing is stored. No id comes twice in a call.
-- Keys:   strict, env, ids, pages, ready, unfinished, queues, tasks, waiting, bell, events
-- flags:
-- parts:  replicas put pages
-- A repeat writes nothing else, and WAIT waits for what its own connection wrote.
if A.confirm then call('HSET', K.meta, 'confirmed_at', string.format('%d', now)) end

-- One list for each group, in turn what was found, what is stored, what is ready: lists that are thrown away
-- are collected within the same call, which took a tenth of its time.
local lists = {}
for place, group in ipairs(A.groups) do
  local ids, found = group[4], fetch('HMGET', K.env, group[4])
  for i = 1, #ids do
    if found[i] then return ids[i] end
  end
  lists[place] = found
end
local created, before = pack(now), 1
for queue, tasks in pairs(A.names) do
  if call('SADD', K.tasks(queue), unpack(tasks)) > 0 then call('SADD', K.queues, queue) end
end
for place, group in ipairs(A.groups) do
  local queue, ids, list = group[1], group[4], lists[place]
  local key = string.format('%d', now - head_start(queue, group[2]))
  for i = 1, #ids do list[2 * i - 1], list[2 * i] = ids[i], created .. ARGV[before + i] end
  write('HSET', K.env, list)
  put_on_pages(ids, A.begin)
  for i = 1, #ids do list[2 * i - 1], list[2 * i] = key, ids[i] end
  write('ZADD', K.ready(queue), list)
  if group[3] then call('HINCRBY', K.unfinished, group[3], #ids) end
  rings[queue] = (rings[queue] or 0) + #ids
  before = before + #ids
  if keeps_events then
    for _, id in ipairs(ids) do event(id, 'enqueued', 'ready', nil, nil, nil, 0) end
  end
end
done()
return now
