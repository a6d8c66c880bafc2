-- read_lines: lines of one book by key, without those whose time is over.
-- A:      now; book, after, before, limit, is_newest_first
-- Return: {key, body, …}
-- Keys:   lines, bodies
-- flags:  no-writes
-- parts:
local low, high = A.after and '(' .. A.after or '-', A.before and '(' .. A.before or '+'
local out, start = {}, 0
while #out < 2 * A.limit do
  local keys
  if A.is_newest_first then
    keys = call('ZREVRANGEBYLEX', K.lines(A.book), high, low, 'LIMIT', start, A.limit)
  else
    keys = call('ZRANGEBYLEX', K.lines(A.book), low, high, 'LIMIT', start, A.limit)
  end
  local bodies = fetch('HMGET', K.bodies(A.book), keys)
  for i, key in ipairs(keys) do
    local line = read(bodies[i])
    if (not line[2] or line[2] > now) and #out < 2 * A.limit then
      out[#out + 1], out[#out + 2] = key, line[1]
    end
  end
  if #keys < A.limit then break end
  start = start + #keys
end
return out
