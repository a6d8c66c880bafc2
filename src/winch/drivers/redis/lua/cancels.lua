-- cancels: running jobs of these sessions that are asked to stop.
-- A:      sessions
-- Return: {id, token, session, …}
-- Keys:   cancelling, run
-- flags:  no-writes
-- parts:
local wanted, found = {}, {}
for _, session in ipairs(A.sessions) do wanted[session] = true end
for _, id in ipairs(call('SMEMBERS', K.cancelling)) do
  local r = call('HGET', K.run, id)
  local claim = r and read(r)
  if claim and wanted[claim[2]] then
    found[#found + 1], found[#found + 2] = id, claim[1]
    found[#found + 1] = claim[2]
  end
end
return found
