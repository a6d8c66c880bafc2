-- forget_signals: deletes those of these that no job has taken.
-- A:      signals: {name, id} each
-- Return: how many there were
-- Keys:   signal_ends, signals, untaken
-- flags:
-- parts:
local gone = 0
for _, signal in ipairs(A.signals) do
  local name, id = unpack(signal)
  if call('ZREM', K.untaken(name), id) == 1 then
    call('HDEL', K.signals(name), id)
    call('ZREM', K.signal_ends, pack({name, id}))
    gone = gone + 1
  end
end
return gone
