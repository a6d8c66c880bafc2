-- key_holders: the live jobs that hold these unique keys.
-- A:      keys
-- Return: for each the id and the state; '' and '' where the key is free
-- Keys:   uniq, env, st, run
-- flags:  no-writes
-- parts:  put record
local out = {}
for _, key in ipairs(A.keys) do
  local id = call('HGET', K.uniq, key)
  local j = id and load(id)
  out[#out + 1] = j and id or ''
  out[#out + 1] = j and j.s or ''
end
return out
