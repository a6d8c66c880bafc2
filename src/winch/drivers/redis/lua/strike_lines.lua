-- strike_lines: removes lines of a book.
-- A:      book, keys
-- Return: how many there were
-- Keys:   lines, bodies, lines_end
-- flags:  allow-oom
-- parts:
local gone = 0
for _, key in ipairs(A.keys) do
  gone = gone + call('ZREM', K.lines(A.book), key)
  call('HDEL', K.bodies(A.book), key)
  call('ZREM', K.lines_end, pack({A.book, key}))
end
return gone
