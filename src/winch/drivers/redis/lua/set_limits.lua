-- set_limits: numbers by name, for the whole fleet; jobs that fit by them are ready: blocked -> ready.
-- A:      now; specs: name -> {n, per, how, burst} or false; by, is_live
-- Return: 1
-- Keys:   limits, closed, and as admit
-- flags:
-- parts:  put record
for name, spec in pairs(A.specs) do
  local known = call('HGET', K.limits, name)
  if not (known and read(known).is_live and not A.is_live) then
    if spec then
      call('HSET', K.limits, name, pack({spec = spec, is_live = A.is_live, by = A.by, at = now}))
    else
      call('HDEL', K.limits, name)
    end
  end
end
local keys = {}
for _, key in ipairs(call('SMEMBERS', K.closed)) do
  local name = string.match(key, '^[^=]*')
  if A.specs[name] ~= nil then keys[#keys + 1] = key end
end
table.sort(keys)
for _, key in ipairs(keys) do open_gate(key) end
done()
return 1
