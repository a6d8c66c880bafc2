-- write_lines: lines of books; one that is there is replaced. Some whose time is over go by the way.
-- A:      now; lines: {book, key, body, keep or false}
-- Return: 1
-- Keys:   lines, bodies, lines_end
-- flags:
-- parts:
for _, over in ipairs(call('ZRANGEBYSCORE', K.lines_end, '-inf', string.format('%d', now), 'LIMIT', 0, 100)) do
  local line = read(over)
  call('ZREM', K.lines(line[1]), line[2])
  call('HDEL', K.bodies(line[1]), line[2])
  call('ZREM', K.lines_end, over)
end
for _, line in ipairs(A.lines) do
  local book, key, till = line[1], line[2], line[4] and now + line[4] or false
  call('ZADD', K.lines(book), 0, key)
  call('HSET', K.bodies(book), key, pack({line[3], till}))
  local place = pack({book, key})
  if till then
    call('ZADD', K.lines_end, string.format('%d', till), place)
  else
    call('ZREM', K.lines_end, place)
  end
end
return 1
