-- groups: the fingerprints of dead jobs, most jobs first.
-- A:      start, count
-- Return: for each: {fingerprint, number, first death, last death, newest id}
-- Keys:   groups, alike, alike_at
-- flags:  no-writes
-- parts:
local out = {}
local found = call('ZREVRANGE', K.groups, A.start, A.start + A.count - 1, 'WITHSCORES')
for i = 1, #found, 2 do
  local key = K.alike_at(found[i])
  local first, last = call('ZRANGE', key, 0, 0, 'WITHSCORES'), call('ZRANGE', key, -1, -1, 'WITHSCORES')
  local newest = call('ZREVRANGEBYLEX', K.alike(found[i]), '+', '-', 'LIMIT', 0, 1)
  out[#out + 1] = {found[i], tonumber(found[i + 1]), tonumber(first[2]), tonumber(last[2]), newest[1]}
end
return out
