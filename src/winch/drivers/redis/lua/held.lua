-- held: the live claims of a session, by id.
-- A:      session
-- Return: {id, token, …}
-- Keys:   held, run
-- flags:  no-writes
-- parts:
local ids, found = call('SMEMBERS', K.held(A.session)), {}
table.sort(ids)
for _, id in ipairs(ids) do
  local r = call('HGET', K.run, id)
  if r then found[#found + 1], found[#found + 2] = id, read(r)[1] end
end
return found
