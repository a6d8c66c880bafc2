-- prune: final jobs whose keeping time is over are deleted, unless a job still waits for them; so are old signals, and sessions that
-- ended long ago.
-- A:      now; limit, keep_sessions
-- Return: how many jobs went
-- Keys:   drop, env, st, ids, pages, paged_to, keep, cancelled, dead, …, ended, sess, beats, signal_ends,
--         signals, untaken, took, waiters
-- flags:  allow-oom
-- parts:  put record remove pages awaited
local gone, upto = 0, string.format('%d', now)
while gone < A.limit do
  local batch = call('ZRANGEBYSCORE', K.drop, '-inf', upto, 'WITHSCORES', 'LIMIT', 0, 1)
  if #batch == 0 then break end
  local ids, left, longer_kept = read(batch[1]), {}, {}
  for i, id in ipairs(ids) do
    if gone >= A.limit then
      left[#left + 1] = id
    else
      local j = load(id)
      -- Retried since, or ended anew and kept for longer: then it is in another batch.
      if j and FINAL[j.s] and j.f + (j.env[KEPT] or KEEP[j.s]) <= now then
        if still_awaited(j.env[HEADERS]) then
          longer_kept[#longer_kept + 1] = id
        else
          remove(j)
          gone = gone + 1
        end
      end
    end
  end
  call('ZREM', K.drop, batch[1])
  if #left > 0 then call('ZADD', K.drop, batch[2], pack(left)) end
  if #longer_kept > 0 then
    call('ZADD', K.drop, string.format('%d', now + STILL_AWAITED), pack(longer_kept))
  end
end
tidy_pages(1 + math.floor(gone / 100))
for _, signal in ipairs(call('ZRANGEBYSCORE', K.signal_ends, '-inf', upto, 'LIMIT', 0, A.limit)) do
  local name, id = unpack(read(signal))
  local _, _, job, wanted_by = unpack(read(call('HGET', K.signals(name), id)))
  if job then call('HDEL', K.took, pack({job, wanted_by, name})) end
  call('HDEL', K.signals(name), id)
  call('ZREM', K.untaken(name), id)
  call('ZREM', K.signal_ends, signal)
end
for _, key in ipairs(call('ZRANGEBYSCORE', K.kept_until, '-inf', upto, 'LIMIT', 0, A.limit)) do
  call('HDEL', K.kept, key)
  call('ZREM', K.kept_until, key)
end
local sessions = call('HGETALL', K.ended)
for i = 1, #sessions, 2 do
  if read(sessions[i + 1]).at <= now - A.keep_sessions and call('EXISTS', K.held(sessions[i])) == 0 then
    call('HDEL', K.ended, sessions[i])
    call('HDEL', K.sess, sessions[i])
    call('HDEL', K.beats, sessions[i])
  end
end
done()
return gone
