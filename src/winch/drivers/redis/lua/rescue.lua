-- rescue: sessions whose lease is over end; running -> ready | cancelled | dead for their jobs.
-- A:      now; as_of (or nil), limit, cause, trace; rule: most, within (us)
-- Return: {id, token, session, state, …}
-- Keys:   alive, ended, orphaned, sched, sched_due, declares, declared, and as crash
-- flags:  allow-oom
-- parts:  put record fingerprint suspect schedule session
local judged = A.as_of and math.min(now, A.as_of) or now
for _, session in ipairs(call('ZRANGEBYSCORE', K.alive, '-inf', string.format('%d', judged))) do
  end_of(session, 'lease over')
  call('SADD', K.orphaned, session)
end
local orphans, out = {}, {}
for _, session in ipairs(call('SMEMBERS', K.orphaned)) do
  local ids = call('SMEMBERS', K.held(session))
  if #ids == 0 then call('SREM', K.orphaned, session) end
  for _, id in ipairs(ids) do orphans[#orphans + 1] = id end
end
table.sort(orphans)
for i = 1, math.min(#orphans, A.limit) do
  local j = load(orphans[i])
  local token, session = j.token, j.x
  suspect(j, 'rescued', A.cause, A.trace, nil)
  out[#out + 1], out[#out + 2] = j.id, token
  out[#out + 1], out[#out + 2] = session, j.s
end
done()
return out
