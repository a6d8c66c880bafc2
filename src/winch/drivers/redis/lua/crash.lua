-- crash: running -> ready | cancelled | dead. The job killed its process. Fenced by (id, token).
-- A:      now; claims: {id, token}; cause, trace; rule: most, within (us)
-- Return: took | already | lost for each
-- Keys:   as release, dead, deaths, alike, alike_at, groups
-- flags:  allow-oom
-- parts:  put record fingerprint suspect
local answers = {}
for i, claim in ipairs(A.claims) do
  local j = held_by(claim)
  if j then
    suspect(j, 'crashed', A.cause, A.trace, claim[2])
    answers[i] = 'took'
  else
    answers[i] = look_up(claim[1], claim[2])
  end
end
done()
return answers
