-- end_rule: this rule of a queue is set in every part; a later one may be on its way.
-- A:      queue, number
-- Return: 1
-- Keys:   ruling
-- flags:
-- parts:
local begun = call('HGET', K.ruling, A.queue)
if begun and read(begun)[1] == A.number then call('HDEL', K.ruling, A.queue) end
return 1
