-- admit: blocked -> ready, at gates whose moment has come. A sweep looks at every gate that is waited at.
-- A:      now; limit, is_sweep, many (how many gates a sweep looks at)
-- Return: {now, count, the next moment or -1}
-- Keys:   opens, closed, caps, rests, gate, used, own, permits, run, and as release
-- flags:  allow-oom
-- parts:  put record
local upto, count, keys = string.format('%d', now), 0, nil

-- What a claim has passed is noted in it.
local function each_held(r, see)
  if not string.find(r, 'limit', 1, true) then return end
  local claim = read(r)
  for _, use in ipairs(claim[6] or {}) do
    if use[2] == 'limit' then see(use[1], use[3], use[4] and gates().own_field(use[1], claim[2], use[4])) end
  end
end

-- The claims are the truth beside the sums of limits.
local function mend_limits(keys)
  local sums, shares, runs = {}, {}, call('HVALS', K.run)
  for _, key in ipairs(keys) do sums[key] = 0 end
  for _, r in ipairs(runs) do
    each_held(r, function(key, weight, field)
      if not sums[key] then return end
      if field then
        shares[field] = (shares[field] or 0) + 1
      else
        sums[key] = sums[key] + weight
      end
    end)
  end
  local kept, gone = {}, {}
  for field, count in pairs(shares) do
    local key, at_once = gates().of_field(field)
    sums[key] = sums[key] + math.min(count, at_once)
    kept[#kept + 1], kept[#kept + 2] = field, string.format('%d', count)
  end
  for _, field in ipairs(call('HKEYS', K.own)) do
    if sums[gates().of_field(field)] and not shares[field] then gone[#gone + 1] = field end
  end
  write('HSET', K.own, kept)
  write('HDEL', K.own, gone)
  for key, sum in pairs(sums) do
    if sum > 0 then
      call('HSET', K.used, key, wide(sum))
    else
      call('HDEL', K.used, key)
    end
  end
end

-- So are the permits of scopes and queues; one of a job that does not run is left over from a mishap.
local function mend(key)
  local sum, all = 0, call('HGETALL', K.permits(key))
  for i = 1, #all, 2 do
    if call('HEXISTS', K.run, all[i]) == 1 then
      sum = sum + all[i + 1]
    else
      call('HDEL', K.permits(key), all[i])
    end
  end
  if sum > 0 then
    call('HSET', K.used, key, string.format('%d', sum))
  else
    call('HDEL', K.used, key)
  end
end

if A.is_sweep then
  keys = call('SRANDMEMBER', K.closed, A.many)
  local limits = {}
  for _, key in ipairs(keys) do
    local kind = string.match(key, '^%l+')
    if kind == 'scope' then
      mend(key)
    elseif kind ~= 'fifo' then
      limits[#limits + 1] = key
    end
  end
  if #limits > 0 then mend_limits(limits) end
  for _, queue in ipairs(call('HKEYS', K.caps)) do mend('queue:' .. queue) end
  for _, key in ipairs(call('ZRANGEBYSCORE', K.rests, '-inf', upto, 'LIMIT', 0, A.many)) do
    call('HDEL', K.gate, key)
    call('ZREM', K.rests, key)
  end
else
  keys = call('ZRANGEBYSCORE', K.opens, '-inf', upto, 'LIMIT', 0, A.limit)
end
table.sort(keys)
for _, key in ipairs(keys) do
  if count >= A.limit then break end
  count = count + open_gate(key)
end
local first = call('ZRANGE', K.opens, 0, 0, 'WITHSCORES')
is_due = false  -- the caller is the one that would be woken
done()
return {now, count, tonumber(first[2] or -1)}
