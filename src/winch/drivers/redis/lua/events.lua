-- events: the changes after a sequence number.
-- A:      after, limit
-- Return: {number, event, …}
-- Keys:   events
-- flags:  no-writes
-- parts:
local out = {}
local found = call('XRANGE', K.events, string.format('%d-0', A.after + 1), '+', 'COUNT', A.limit)
for _, entry in ipairs(found) do
  out[#out + 1], out[#out + 2] = entry[1], entry[2][2]
end
return out
