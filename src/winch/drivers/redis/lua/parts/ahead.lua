-- ahead: how many ready jobs of a queue come before one, with what stands in a set of its own among them.
local function sets_of(queue)
  return {K.ready(queue), K.gated(queue), K.tenanted(queue)}
end

-- In all sets but its own, which has a rank for it. Of those with the same key the smaller id comes first.
local function ahead_in_others(queue, key, id, own)
  local count = 0
  for _, set in ipairs(sets_of(queue)) do
    if set ~= own then
      count = count + call('ZCOUNT', set, '-inf', '(' .. key)
      for _, other in ipairs(call('ZRANGEBYSCORE', set, key, key, 'LIMIT', 0, 1000)) do
        if other < id then count = count + 1 end
      end
    end
  end
  return count
end
