-- cancel: waiting -> cancelled | ready (to undo); a running job gets a request, which the end of its claim carries out.
-- A:      now; ids, by, reason
-- Return: {state before or '', took, holder} for each
-- Keys:   env, st, run, ready, scheduled, retrying, cancelling, cancelled, drop, uniq, ukey, events
-- flags:  allow-oom
-- parts:  put record operate
return operate('cancel', function(j)
  local why = A.reason or 'cancelled by ' .. A.by
  -- One that has something to undo is asked too, and ready to do it.
  if j.s == 'running' or j.U then
    if j.q then return end
    acted(j, 'cancel requested', A.by, A.reason)
    if j.s == 'running' then call('SADD', K.cancelling, j.id) end
    if j.s == 'running' or j.s == 'ready' then
      j.q, j.w = now, why
      save(j)
      return
    end
    leave(j)
    j.s, j.t, j.q, j.w = 'ready', now, now, why
    enter(j, 'cancelled', nil, nil)
    return
  end
  leave(j)
  acted(j, 'cancelled', A.by, A.reason)
  j.s, j.w = 'cancelled', why
  enter(j, 'cancelled', nil, nil)
end)
