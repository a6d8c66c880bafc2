-- schedules: all of them, or the one of a name, with the definition that is in effect.
-- A:      now; name (nil: all)
-- Return: {now, {name, row, definition of the last session that declares it or nil, how many do}, …}
-- Keys:   sched, declared
-- flags:  no-writes
-- parts:  schedule
local found, out = {}, {now}
if A.name then
  local row = call('HGET', K.sched, A.name)
  if row then found = {A.name, row} end
else
  found = call('HGETALL', K.sched)
end
for i = 1, #found, 2 do
  local definition, _, count = declared_last(found[i])
  out[#out + 1] = {found[i], found[i + 1], definition, count}
end
return out
