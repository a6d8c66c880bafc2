-- untaken_signals: those that no job has taken, the oldest first: they are all kept equally long.
-- A:      limit
-- Return: {name, id, payload} each
-- Keys:   signal_ends, signals, untaken
-- flags:  no-writes
-- parts:
local out, from = {}, 0
while #out < A.limit do
  local some = call('ZRANGE', K.signal_ends, from, from + STEP - 1)
  if #some == 0 then break end
  from = from + #some
  for _, signal in ipairs(some) do
    local name, id = unpack(read(signal))
    if #out < A.limit and call('ZSCORE', K.untaken(name), id) then
      out[#out + 1] = {name, id, read(call('HGET', K.signals(name), id))[1]}
    end
  end
end
return out
