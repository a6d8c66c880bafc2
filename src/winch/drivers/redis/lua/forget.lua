-- forget: messages that home has confirmed are let go; that the job went home is remembered for a while.
-- A:      ids
-- Return: 1
-- Keys:   leaving, away
-- flags:  allow-oom
-- parts:
for _, id in ipairs(A.ids) do
  if call('HDEL', K.leaving, id) == 1 then call('ZADD', K.away, string.format('%d', clock()), id) end
end
return 1
