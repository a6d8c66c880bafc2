-- unique_keys: some of the keys that begin so, and the live jobs that hold them; the key itself first.
-- A:      prefix, limit, most (how many keys are met)
-- Return: {key, job, …}
-- Keys:   uniq
-- flags:  no-writes
-- parts:
local out, cursor, seen = {}, '0', 0
local exact = call('HGET', K.uniq, A.prefix)
if exact then out[1], out[2] = A.prefix, exact end
repeat
  local found = call('HSCAN', K.uniq, cursor, 'COUNT', 1000)
  cursor, seen = found[1], seen + 1000
  for i = 1, #found[2], 2 do
    local key = found[2][i]
    if key ~= A.prefix and string.sub(key, 1, #A.prefix) == A.prefix and #out < 2 * A.limit then
      out[#out + 1], out[#out + 2] = key, found[2][i + 1]
    end
  end
until cursor == '0' or seen >= A.most or #out >= 2 * A.limit
return out
