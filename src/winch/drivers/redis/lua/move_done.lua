-- move_done: forgets the open parcel of this number.
-- A:      move, number
-- Return: 1
-- Keys:   parcels, parcel
-- flags:  allow-oom
-- parts:
local field = 'open:' .. A.move
if tonumber(call('HGET', K.parcels, field) or '0') == A.number then
  call('HDEL', K.parcels, field)
  call('DEL', K.parcel(A.move))
end
return 1
