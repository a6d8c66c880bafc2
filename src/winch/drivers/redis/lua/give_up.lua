-- give_up: running -> ready | cancelled, for what this session runs under one of these tokens.
-- A:      now; session, tokens: token -> true
-- Return: how many
-- Keys:   as release
-- flags:  allow-oom
-- parts:  put record
local given = 0
for _, id in ipairs(call('SMEMBERS', K.held(A.session))) do
  local j = load(id)
  if j and A.tokens[j.token] then
    give_back(j, j.token, false)
    given = given + 1
  end
end
done()
return given
