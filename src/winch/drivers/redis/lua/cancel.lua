-- cancel: waiting -> cancelled; a running job gets a request, which the end of its claim carries out.
-- A:      now; ids, by, reason
-- Return: {state before or '', took, holder} for each
-- Keys:   env, st, run, ready, scheduled, retrying, cancelling, cancelled, drop, uniq, ukey, events
-- flags:  allow-oom
-- parts:  put record operate
return operate('cancel', function(j)
  local why = A.reason or 'cancelled by ' .. A.by
  if j.s == 'running' then
    if not j.q then
      acted(j, 'cancel requested', A.by, A.reason)
      j.q, j.w = now, why
      call('SADD', K.cancelling, j.id)
      save(j)
    end
    return
  end
  leave(j)
  acted(j, 'cancelled', A.by, A.reason)
  j.s, j.w = 'cancelled', why
  enter(j, 'cancelled', nil, nil)
end)
