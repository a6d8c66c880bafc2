-- live: whether a job is there and not final.
local function is_live(id)
  if not id or call('HEXISTS', K.env, id) == 0 then return false end
  if call('HEXISTS', K.run, id) == 1 then return true end
  local s = call('HGET', K.st, id)
  return not (s and FINAL[read(s).s or 'ready'])
end
