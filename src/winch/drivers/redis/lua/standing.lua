-- standing: where claims stand. No script runs beside another, so nothing is under way.
-- A:      claims: {id, token}
-- Return: live | ended | lost for each
-- Keys:   run, st
-- flags:  no-writes
-- parts:  put record
local answers = {}
for i, claim in ipairs(A.claims) do
  local r = call('HGET', K.run, claim[1])
  if r and read(r)[1] == claim[2] then
    answers[i] = 'live'
  else
    answers[i] = look_up(claim[1], claim[2]) == 'already' and 'ended' or 'lost'
  end
end
return answers
