-- admit: an end returns its permits and its turn, and jobs that wait become ready: blocked -> ready.
-- Jobs that this script has let in: id -> queue, envelope, state as it is stored, and the envelope's fields.
local admitted = {}

local function add(lists, key, value, other)
  local list = lists[key]
  if not list then
    list = {}
    lists[key] = list
  end
  list[#list + 1] = value
  if other then list[#list + 1] = other end
end

-- blocked -> ready, all of them with few commands. `gates_of`: the gate that each must wait at; others stay.
local function let_in(ids, gates_of)
  local es, ss = fetch('HMGET', K.env, ids), fetch('HMGET', K.st, ids)
  local gone, line, states, seen, left, count = {}, {}, {}, {}, {}, 0
  for i, id in ipairs(ids) do
    local made = seen[ss[i]]
    if not made and ss[i] then
      local s = read(ss[i])
      made = {is_blocked = s.s == 'blocked', gate = s.G, t = s.t, x = s.x, a = s.a or 0}
      s.s, s.G, s.a = 'ready', nil, made.a
      made.text = pack(s)
      seen[ss[i]] = made
    end
    local created, env = read_envelope(es[i])
    if gates_of and not (made and made.is_blocked and made.gate == gates_of[i]) then
      env = nil
    elseif not env or env[TENANT] or not is_gated(env) or not (made and made.gate) then
      local j = load(id)
      leave(j)
      j.s = 'ready'
      enter(j, 'admitted', nil, nil)
      count = count + 1
    else
      local queue = env[QUEUE]
      add(gone, K.blocked(queue), id)
      add(gone, K.stopped(made.gate), id)
      left[made.gate] = true
      local at = (made.t or created) - head_start(queue, env[PRIORITY])
      add(line, K.gated(queue), string.format('%d', at), id)
      states[#states + 1], states[#states + 2] = id, made.text
      ring(queue)
      event(id, 'admitted', 'ready', nil, nil, made.x, made.a)
      admitted[id] = {queue = queue, e = es[i], s = made.text, env = env}
      count = count + 1
    end
  end
  for key, some in pairs(gone) do write('ZREM', key, some) end
  for key, some in pairs(line) do write('ZADD', key, some) end
  write('HSET', K.st, states)
  local empty = {}
  for gate in pairs(left) do
    if call('EXISTS', K.stopped(gate)) == 0 then empty[#empty + 1] = gate end
  end
  write('SREM', K.closed, empty)
  write('ZREM', K.opens, empty)
  return count
end

-- The first in line at a FIFO key, if it waits there.
local function first_of(key, first)
  return first and call('ZSCORE', K.stopped(key), first) and {first} or {}
end

-- What claims held of their gates goes back, and the next in line are let in. Answers the gates by their keys: those of
-- FIFO keys with the member that is first now, where it was looked up.
-- ends: {id, uses, had: whether the claim that ended held them, is_ended, is_dead: keeps the turns of keys that a death
-- blocks; shared: limits that count what the session runs at once, session}
local function leave_gates(ends)
  local found, order, turns, fifo, waited, fields, fewer_own, field_of = {}, {}, {}, {}, {}, {}, {}, {}
  for _, one in ipairs(ends) do
    for _, use in ipairs(one.uses) do
      local is_fifo, is_limit = use.kind == 'fifo', use.kind == 'limit'
      if is_fifo and one.is_ended or is_limit and one.had or use.kind == 'scope' then
        local gate = found[use.key]
        if not gate then
          gate = {key = use.key, is_fifo = is_fifo, ids = {}, units = 0, returned = 0}
          found[use.key], order[#order + 1] = gate, gate
          if is_fifo then fifo[#fifo + 1] = use.key end
        end
        if is_fifo then
          gate.ids[#gate.ids + 1] = one.id
          if not (one.is_dead and use.blocks_on_death) then
            gate.leaving = gate.leaving or {}
            gate.leaving[one.id] = true
          end
        elseif is_limit then
          local at_once = one.shared and one.shared[use.key]
          if at_once then
            local field = gates().own_field(use.key, one.session, at_once)
            local place = field_of[field] or #fields + 1
            field_of[field], fields[place], fewer_own[place] = place, field, (fewer_own[place] or 0) - 1
          else
            gate.returned = gate.returned + use.weight
          end
          gate.units = gate.units + math.min(math.max(use.weight, 1), OPENED_AT_ONCE)
        else
          gate.ids[#gate.ids + 1] = one.id
        end
      end
    end
  end
  if #order == 0 then return found end
  for i, id in ipairs(fetch('HMGET', K.turn, fifo)) do
    local gate = found[fifo[i]]
    if id and gate.leaving and gate.leaving[id] then
      turns[#turns + 1], id = fifo[i], false
    end
    gate.turn = id
  end
  write('HDEL', K.turn, turns)
  for i, used in ipairs(#fields > 0 and gates().count_own(fields, fewer_own) or {}) do
    local gate = found[gates().of_field(fields[i])]
    gate.returned = gate.returned - used
  end
  local counted = {}
  for _, gate in ipairs(order) do
    if gate.is_fifo then
      write('ZREM', K.members(gate.key), gate.ids)
      if gate.leaving and not gate.turn then waited[#waited + 1] = gate.key end
    else
      for _, id in ipairs(gate.ids) do gate.returned = gate.returned + call('HDEL', K.permits(gate.key), id) end
      gate.units = math.max(gate.units, gate.returned)
      if gate.units > 0 then
        counted[#counted + 1], waited[#waited + 1] = gate.key, gate.key
      end
    end
  end
  local used, unused = {}, {}
  for i, before in ipairs(fetch('HMGET', K.used, counted)) do
    local left = tonumber(before or 0) - found[counted[i]].returned
    if left > 0 then
      used[#used + 1], used[#used + 2] = counted[i], wide(left)
    else
      unused[#unused + 1] = counted[i]
    end
  end
  write('HSET', K.used, used)
  write('HDEL', K.used, unused)
  -- Only gates that are waited at have a next one.
  local closed, ids, keys = {}, {}, {}
  for i, is_closed in ipairs(fetch('SMISMEMBER', K.closed, waited)) do
    if is_closed == 1 then closed[#closed + 1] = waited[i] end
  end
  table.sort(closed)
  for _, key in ipairs(closed) do
    local gate, next_ones = found[key], nil
    if gate.is_fifo then
      next_ones = call('ZRANGE', K.members(key), 0, 0)
      gate.first = next_ones[1]
    else
      next_ones = call('ZRANGE', K.stopped(key), 0, gate.units - 1)
    end
    for _, id in ipairs(next_ones) do ids[#ids + 1], keys[#keys + 1] = id, key end
  end
  if #ids > 0 then let_in(ids, keys) end
  return found
end

gave_back = function(j, is_deleted)
  leave_gates({{
    id = j.id, uses = gates().uses(j.env[OPTIONS]), had = j.had, is_ended = is_deleted or FINAL[j.s],
    is_dead = not is_deleted and j.s == 'dead', shared = gates().shared(j.passed), session = j.x,
  }})
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

-- Make ready the jobs that this gate lets through now; note when to look again for the others.
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
