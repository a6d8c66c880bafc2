-- session: the end of one.
local function end_of(session, reason)
  local lease_until = call('ZSCORE', K.alive, session)
  if not lease_until then return end
  call('ZREM', K.alive, session)
  undeclare(session)
  call('HSET', K.ended, session, pack({at = now, reason = reason, lease_until = tonumber(lease_until)}))
end
