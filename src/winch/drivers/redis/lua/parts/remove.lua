-- remove: no trace of a job is left but its events.
local function remove(j)
  leave(j)
  if not FINAL[j.s] then
    free_key(j)
    tell_waiting(j, false)
  end
  call('HDEL', K.env, j.id)
  call('HDEL', K.st, j.id)
  call('HDEL', K.keep, j.id)
  call('ZREM', K.ids, j.id)
  if is_gated(j.env) then gave_back(j, true) end
end
