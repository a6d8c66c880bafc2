-- admit: what ends gives its permits and its turn back, and those who wait are let in: blocked -> ready.
local function let_in(ids)
  for _, id in ipairs(ids) do
    local j = load(id)
    leave(j)
    j.s = 'ready'
    enter(j, 'admitted', nil, nil)
  end
  return #ids
end

-- The first in line at a FIFO key, if it waits there.
local function first_of(key, first)
  return first and call('ZSCORE', K.stopped(key), first) and {first} or {}
end

gave_back = function(j, is_deleted)
  local is_ended, freed = is_deleted or FINAL[j.s], {}
  for _, use in ipairs(gates().uses(j.env[OPTIONS])) do
    local key = use.key
    if use.kind == 'fifo' then
      if is_ended then
        call('ZREM', K.members(key), j.id)
        if is_deleted or not (j.s == 'dead' and use.blocks_on_death) then
          if call('HGET', K.turn, key) == j.id then call('HDEL', K.turn, key) end
          freed[#freed + 1] = {key, 1, true}
        end
      end
    else
      local weight = tonumber(call('HGET', K.permits(key), j.id) or nil)
      if weight then
        call('HDEL', K.permits(key), j.id)
        if call('HINCRBY', K.used, key, -weight) <= 0 then call('HDEL', K.used, key) end
        freed[#freed + 1] = {key, math.min(math.max(weight, 1), OPENED_AT_ONCE), false}
      end
    end
  end
  table.sort(freed, function(a, b) return a[1] < b[1] end)
  for _, one in ipairs(freed) do
    local key = one[1]
    if not one[3] then
      let_in(call('ZRANGE', K.stopped(key), 0, one[2] - 1))
    elseif call('HEXISTS', K.turn, key) == 0 then
      let_in(first_of(key, call('ZRANGE', K.members(key), 0, 0)[1]))
    end
  end
end

-- Takes the turn of a job that is not final, for the next of its FIFO keys.
local function leave_turn(j)
  for _, use in ipairs(gates().uses(j.env[OPTIONS])) do
    if use.kind == 'fifo' and call('HGET', K.turn, use.key) == j.id then
      call('HDEL', K.turn, use.key)
      let_in(first_of(use.key, call('ZRANGE', K.members(use.key), 0, 0)[1]))
    end
  end
end

-- Make ready whom this gate lets through now; note when to look again for the others.
local function open_gate(key)
  local ids = call('ZRANGE', K.stopped(key), 0, OPENED_AT_ONCE - 1)
  if #ids == 0 then
    call('SREM', K.closed, key)
    call('ZREM', K.opens, key)
    return 0
  end
  local G, use = gates(), nil
  for _, one in ipairs(G.uses(load(ids[1]).env[OPTIONS])) do
    if one.key == key then use = one end
  end
  if not use then return let_in(ids) end  -- options that were damaged: the claim decides anew
  local look = G.look(use)
  if use.kind == 'fifo' then return let_in(first_of(key, look.turn or look.head)) end
  local count, next_at = G.room(look, use, #ids)
  local is_all = count == #ids and #ids < OPENED_AT_ONCE
  if not is_all and next_at ~= look.open_at then
    G.open_at(key, next_at)
  elseif is_all and look.open_at then
    G.open_at(key, nil)
  end
  while #ids > count do ids[#ids] = nil end
  return let_in(ids)
end

-- A FIFO key's live members, by their numbers. Answers the member's: the one that it has, or the next, which is greater
-- than those of all live members of its key and no less than the moment. Nil for a job without such a key.
local function join(id, env, number)
  local keys = {}
  for _, use in ipairs(gates().uses(env[OPTIONS])) do
    if use.kind == 'fifo' then keys[#keys + 1] = K.members(use.key) end
  end
  if #keys == 0 then return nil end
  if not number then
    number = now
    for _, key in ipairs(keys) do
      local last = call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
      if last then number = math.max(number, next_number(tonumber(last))) end
    end
  end
  for _, key in ipairs(keys) do call('ZADD', key, string.format('%d', number), id) end
  return number
end
