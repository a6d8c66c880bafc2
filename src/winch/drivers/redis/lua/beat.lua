-- beat: the leases of live sessions anew. Touches no job.
-- A:      now; sessions
-- Return: {now, beats of each (-1: not live)}
-- Keys:   alive, sess, beats
-- flags:  allow-oom
-- parts:
local out = {now}
for _, session in ipairs(A.sessions) do
  if call('ZSCORE', K.alive, session) then
    local _, lease = read(call('HGET', K.sess, session))
    call('ZADD', K.alive, string.format('%d', now + lease), session)
    out[#out + 1] = call('HINCRBY', K.beats, session, 1)
  else
    out[#out + 1] = -1
  end
end
return out
