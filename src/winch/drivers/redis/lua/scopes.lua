-- scopes: what scopes remember, and how many jobs wait at each.
-- A:      most (how many gates are met)
-- Return: {key, state, waiting} for each
-- Keys:   gate, stopped
-- flags:  no-writes
-- parts:
local out, cursor, seen = {}, '0', 0
repeat
  local found = call('HSCAN', K.gate, cursor, 'MATCH', 'scope:*', 'COUNT', 1000)
  cursor, seen = found[1], seen + 1000
  for i = 1, #found[2], 2 do
    local key = found[2][i]
    out[#out + 1] = {key, found[2][i + 1], call('ZCARD', K.stopped(key))}
  end
until cursor == '0' or seen >= A.most
return out
