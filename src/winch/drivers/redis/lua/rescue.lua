-- rescue: sessions whose lease is over end; running -> ready | cancelled | dead for their jobs.
-- A:      now; as_of (or nil), limit, cause, trace; rule: most, within (us)
-- Return: {id, token, session, state, …}
-- Keys:   alive, sess, ended, orphaned, sched, sched_due, declares, declared, and as crash
-- flags:  allow-oom
-- parts:  put record fingerprint suspect schedule session
local FAR = 100
local judged = A.as_of and math.min(now, A.as_of) or now
for _, session in ipairs(call('ZRANGEBYSCORE', K.alive, '-inf', string.format('%d', judged))) do
  end_of(session, 'lease over')
  call('SADD', K.orphaned, session)
end
-- A lease never lasts longer than a lease from now. One does where the clock was set back: it is shortened. Such
-- sessions are among those whose leases end last.
local latest = call('ZREVRANGEBYSCORE', K.alive, '+inf', string.format('(%d', now), 'WITHSCORES', 'LIMIT', 0, FAR)
for i = 1, #latest, 2 do
  local _, lease = read(call('HGET', K.sess, latest[i]))
  if tonumber(latest[i + 1]) > now + lease then
    call('ZADD', K.alive, string.format('%d', now + lease), latest[i])
  end
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
