-- move: waiting jobs stand in another queue from now on; everything else stays.
-- A:      now; ids, queue, by
-- Return: {state, took, ''} for each
-- Keys:   as cancel, and queues, tasks
-- flags:
-- parts:  put record
local WAITING = {scheduled = true, retrying = true, ready = true, blocked = true}
local out = {}
for i, id in ipairs(A.ids) do
  local j = load(id)
  local took = j and WAITING[j.s] and not j.is_damaged
  out[i] = {j and j.s or '', took and 1 or 0, ''}
  if took and j.env[QUEUE] ~= A.queue then
    local before = j.env[QUEUE]
    acted(j, 'moved', A.by, 'from ' .. before .. ' to ' .. A.queue)
    if j.s == 'blocked' then  -- what it waits for is kept beside the queue
      call('ZREM', K.blocked(before), id)
    else
      leave(j)
    end
    j.env[QUEUE] = A.queue
    save_env(j)
    if call('SADD', K.tasks(A.queue), j.env[1]) > 0 then call('SADD', K.queues, A.queue) end
    stay(j)
    save(j)
  end
end
done()
return out
