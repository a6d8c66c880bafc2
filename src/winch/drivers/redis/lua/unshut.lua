-- unshut: in a shard, those of these families of gates that are not shut, though they are at home: a failover has set the
-- shard back; see parts/homes.lua.
-- A:      families
-- Return: their names
-- Keys:   shut
-- flags:  no-writes
-- parts:
local found = {}
for _, family in ipairs(A.families) do
  if call('SISMEMBER', K.shut, family) == 0 then found[#found + 1] = family end
end
return found
