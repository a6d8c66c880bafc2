-- retry: scheduled | retrying | completed | cancelled | dead -> ready. A final job takes its key again.
-- A:      now; ids, by, note; args, version, queue, options, max_attempts, from_step (nil: as they are)
-- Return: {state before or '', took, holder} for each
-- Keys:   as cancel, and queues, tasks
-- flags:
-- parts:  put record operate
local function holder_of(j)
  local key = j.env[UNIQUE]
  return FINAL[j.s] and key and call('HGET', K.uniq, key) or nil
end

return operate('retry', function(j)
  local was_final = FINAL[j.s]
  leave(j)
  -- The record's fields described the attempt that completed; from now on they describe others.
  if j.s == 'completed' then
    grow(j, 'completed', nil, j.e, j.f)
    -- It has come to its end: there is nowhere to go on from, unless a step is named.
    if not A.from_step then j.h = nil end
  end
  acted(j, 'retried', A.by, A.note)
  -- Later than its last run time, also where time stands still: a new life differs from a claim that
-- only continues after a crash.
  local run_at = was_final and math.max(now, j.t + 1) or now
  j.s, j.t, j.c, j.r = 'ready', run_at, nil, nil
  if was_final then
    awaits_again(j)
    j.a, j.q, j.f, j.R, j.w, j.g = 0, nil, nil, nil, nil, nil
    if j.env[UNIQUE] then
      call('HSET', K.uniq, j.env[UNIQUE], j.id)
      call('HSET', K.ukey, j.id, j.env[UNIQUE])
    end
  end
  for place, value in pairs({[VERSION] = A.version, [3] = A.args, [4] = A.queue, [OPTIONS] = A.options, [13] = A.max_attempts}) do
    j.env[place] = value
  end
  save_env(j)
  if is_gated(j.env) then join(j.id, j.env, j.N or j.created) end
  if call('SADD', K.tasks(j.env[QUEUE]), j.env[1]) > 0 then call('SADD', K.queues, j.env[QUEUE]) end
  enter(j, 'retried', nil, nil)
end, holder_of)
