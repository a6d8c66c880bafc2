-- swap_line: keeps a line where there is none, or one whose time is over, or that begins with what is expected.
-- A:      now; book, key, body, keep or false; instead_of or false
-- Return: '' when it is kept, else the body that is there
-- Keys:   lines, bodies, lines_end
-- flags:
-- parts:
local packed = call('HGET', K.bodies(A.book), A.key)
if packed then
  local there = read(packed)
  local is_over = there[2] and there[2] <= now
  local is_known = A.instead_of and string.sub(there[1], 1, #A.instead_of) == A.instead_of
  if not (is_over or is_known) then return there[1] end
end
local till = A.keep and now + A.keep or false
call('ZADD', K.lines(A.book), 0, A.key)
call('HSET', K.bodies(A.book), A.key, pack({A.body, till}))
local place = pack({A.book, A.key})
if till then
  call('ZADD', K.lines_end, string.format('%d', till), place)
else
  call('ZREM', K.lines_end, place)
end
return ''
