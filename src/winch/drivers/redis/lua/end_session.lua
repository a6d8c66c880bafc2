-- end_session: running -> ready | cancelled | dead for all jobs of a session that ends now.
-- A:      now; session, reason; started: id -> token; cause, trace (nil: no job caused it); rule: most,
--         within (us)
-- Return: {id, token, state, …}
-- Keys:   alive, ended, orphaned, sched, sched_due, declares, declared, and as crash
-- flags:  allow-oom
-- parts:  put record fingerprint suspect schedule session
end_of(A.session, A.reason)
local out, ids = {}, call('SMEMBERS', K.held(A.session))
table.sort(ids)
for _, id in ipairs(ids) do
  local j = load(id)
  if j and j.token then
    local token = j.token
    if A.cause and A.started[id] == token then
      suspect(j, 'crashed', A.cause, A.trace, nil)
    else
      give_back(j, nil, false)
    end
    out[#out + 1], out[#out + 2] = id, token
    out[#out + 1] = j.s
  end
end
call('SREM', K.orphaned, A.session)
done()
return out
