-- strays: those of these jobs that are in this shard and whose gates are at home; see parts/homes.lua.
-- A:      ids
-- Return: ids
-- Keys:   env, st, run, shut
-- flags:  no-writes
-- parts:  put record homes
local found = {}
for _, id in ipairs(A.ids) do
  local j = call('EXISTS', K.shut) == 1 and load(id)
  if j and shut_of(gates().uses(j.env[OPTIONS])) then found[#found + 1] = id end
end
return found
