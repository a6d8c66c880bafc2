-- sessions: what the store knows of sessions.
-- A:      is_ended_too; or only: one session
-- Return: for each: {id, facts, end of lease, beats, running, ended}
-- Keys:   alive, ended, sess, beats, held
-- flags:  no-writes
-- parts:
local ids, out = {}, {}
if A.only then
  ids = {A.only}
else
  ids = call('ZRANGE', K.alive, 0, -1)
  if A.is_ended_too then
    for _, session in ipairs(call('HKEYS', K.ended)) do ids[#ids + 1] = session end
  end
end
for _, session in ipairs(ids) do
  local facts = call('HGET', K.sess, session)
  if facts then
    out[#out + 1] = {
      session, facts, call('ZSCORE', K.alive, session) or '0', call('HGET', K.beats, session) or '0',
      call('SCARD', K.held(session)), call('HGET', K.ended, session),
    }
  end
end
return out
