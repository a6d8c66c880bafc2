-- arrive: jobs that left their shards are at home what they were there: running under their claim, ready, waiting for
-- their time, or final. Once each.
-- A:      now; ids, confirm. ARGV[2…]: their messages
-- Return: 1
-- Keys:   env, st, run, held, keep, changes, ids, queues, tasks, cancelling, alive, orphaned, arrived, caps, used, own, permits,
--         meta; of those that rest: ready, scheduled, retrying, cancelled, dead, died, deaths, alike, alike_at, groups, drop
-- flags:
-- parts:  put record
if A.confirm then call('HSET', K.meta, 'confirmed_at', string.format('%d', now)) end
for i, id in ipairs(A.ids) do
  if call('HEXISTS', K.env, id) == 0 and not call('ZSCORE', K.arrived, id) then
    local message = read(ARGV[1 + i])
    local e, s, r = message[1], message[2], message[3]
    local j = open(id, e, s, r)
    call('HSET', K.env, id, e)
    if s then call('HSET', K.st, id, s) end
    if message[4] then call('HSET', K.keep, id, message[4]) end
    if message[5] then call('HSET', K.changes, id, message[5]) end
    call('ZADD', K.ids, 0, id)
    for _, one in ipairs(message[6] or {}) do
      local key, number, has_turn, weight, is_limit = one[1], one[2], one[3], one[4], one[5]
      if number then call('ZADD', K.members(key), number, id) end
      if has_turn then call('HSET', K.turn, key, id) end
      if weight then
        if not is_limit then call('HSET', K.permits(key), id, weight) end
        if one[6] then weight = gates().count_own({one[6]}, {1})[1] end
        call('HSET', K.used, key, wide(tonumber(call('HGET', K.used, key) or 0) + weight))
      end
    end
    if r then
      local queue = j.env[QUEUE]
      if call('HEXISTS', K.caps, queue) == 1 then  -- it counts from now on, and gives back when it ends
        local claim, gate = read(r), 'queue:' .. queue
        claim[5] = true
        r = pack(claim)
        call('HSET', K.permits(gate), id, '1')
        call('HSET', K.used, gate, call('HLEN', K.permits(gate)))
      end
      call('HSET', K.run, id, r)
      call('SADD', K.held(j.x), id)
      if j.q then call('SADD', K.cancelling, id) end
      if not call('ZSCORE', K.alive, j.x) then call('SADD', K.orphaned, j.x) end
    else
      stay(j)
    end
    if call('SADD', K.tasks(j.env[QUEUE]), j.env[1]) > 0 then call('SADD', K.queues, j.env[QUEUE]) end
    -- A message that comes once more, after the job has ended and gone, changes nothing.
    call('ZADD', K.arrived, string.format('%d', clock()), id)
  end
end
done()
return 1
