-- draw: which jobs of one queue a claim takes where some have gates or tenants; see core/gates/draw.py.
-- One order for jobs without a tenant, plain and gated; between tenants the one with the least for its weight.
-- Keys: ready, gated, tenanted, line, tenants, fair, env, st, blocked, stopped, closed, opens, gate, rests,
--       used, permits, turn, members, limits
-- Jobs of tenants that are read at once, and how many are held in one call.
local STRETCH, MOST_HELD = 50, 500
-- Above this virtual time begins anew.
local MOST_VIRTUAL = 2 ^ 20

local function draw(queue, free, gated, task_of)
  local G, looks = gates(), {}
  local order, held, scoped, is_more = {}, {}, 0, false

  local function cursor(key, step, is_plain)
    return {key = key, at = 0, step = step, items = {}, place = 1, is_plain = is_plain}
  end

  -- The next job of a set whose task this worker knows; nil at its end.
  local function peek(c)
    while not c.items[c.place] do
      if c.is_over then return nil end
      local found = call('ZRANGE', c.key, c.at, c.at + c.step - 1, 'WITHSCORES')
      local ids = {}
      for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
      c.at, c.is_over = c.at + c.step, #ids < c.step
      c.items, c.place = {}, 1
      local envelopes = fetch('HMGET', K.env, ids)
      local states = c.is_plain and {} or fetch('HMGET', K.st, ids)
      for i, id in ipairs(ids) do
        if not A.tasks or A.tasks[task_of(envelopes[i])] then
          c.items[#c.items + 1] = {
            id = id, key = tonumber(found[2 * i]), from = c, e = envelopes[i], s = states[i],
          }
        end
      end
    end
    return c.items[c.place]
  end

  -- Plain jobs and those with gates, as one line.
  local plain = cursor(K.ready(queue), free, true)
  local others = cursor(K.gated(queue), math.min(free + STRETCH, MOST_HELD), false)
  -- In a cluster: plain jobs of this queue in other parts, whose turn comes with them. The caller knows by
  -- how many are taken here how many of those were.
  local away = cursor(nil, 0, true)
  away.is_over = true
  for i, one in ipairs(A.away or {}) do away.items[i] = {id = one[1], key = one[2], from = away} end
  local function first_without_tenant()
    local a, b = peek(plain), peek(others)
    if a and b then
      a = (a.key < b.key or (a.key == b.key and a.id < b.id)) and a or b
    else
      a = a or b
    end
    b = A.away and peek(away)
    if a and b then
      return (a.key < b.key or (a.key == b.key and a.id < b.id)) and a or b
    end
    return a or b
  end

  -- Grants all that the job needs, or notes the first gate that is closed.
  local function admit(item)
    for _, use in ipairs(item.uses) do
      local look = looks[use.key]
      if not look then
        look = G.look(use)
        looks[use.key] = look
      end
      local is_open, next_at = G.passes(look, use, item.id, item.attempt)
      if not is_open then
        item.gate, item.kind = use.key, use.kind
        held[#held + 1] = item
        if next_at and (not look.open_at or look.open_at > next_at) then
          look.open_at = next_at
          G.open_at(use.key, next_at)
        end
        return false
      end
    end
    for _, use in ipairs(item.uses) do G.grant(looks[use.key], use, item.id, item.attempt) end
    return true
  end

  -- Tenants by their start in virtual time, some at a time; '' are the jobs without one.
  local at = tonumber(call('HGET', K.gate, 'tenants:' .. queue) or 0)
  local lines, ends, weights, served, seen = {}, {}, {}, {}, 0
  local is_fair = call('EXISTS', K.tenants(queue)) == 1
  local function more_tenants()
    local names = call('ZRANGE', K.tenants(queue), seen, seen + 2 * free + STRETCH - 1)
    seen = seen + #names
    for _, tenant in ipairs(names) do
      lines[tenant] = cursor(K.line(queue, tenant), math.min(free + 1, STRETCH), false)
      ends[tenant] = tonumber(call('ZSCORE', K.fair(queue), tenant) or 0)
    end
    return #names > 0
  end
  lines[''] = plain
  if is_fair then
    ends[''] = tonumber(call('ZSCORE', K.fair(queue), '') or 0)
    more_tenants()
  end

  local function next_line()
    if not is_fair then return lines[''] and '' or nil end
    local best, best_at
    for tenant in pairs(lines) do
      local start = math.max(at, ends[tenant])
      if not best or start < best_at or (start == best_at and tenant < best) then
        best, best_at = tenant, start
      end
    end
    return best
  end

  local function weight_of(tenant)
    if tenant == '' then return 1 end
    if not weights[tenant] then
      local set = call('HGET', K.limits, 'tenant:' .. tenant)
      weights[tenant] = set and math.max(1, read(set).spec.n) or 1
    end
    return weights[tenant]
  end

  while #order < free do
    local tenant = next_line()
    local item
    if tenant == nil then
      if not is_fair or is_more or not more_tenants() then break end
    elseif tenant == '' then
      item = first_without_tenant()
    else
      item = peek(lines[tenant])
    end
    if tenant and not item then
      lines[tenant] = nil
    elseif item then
      item.from.place = item.from.place + 1
      local is_taken = item.from == plain or item.from == away
      if not is_taken then
        local _, env = read(item.e)
        item.state, item.tenant = item.s and read(item.s) or {}, tenant
        item.uses, item.attempt = G.uses(env[11]), item.state.a or 0
        local is_scoped = false
        for _, use in ipairs(item.uses) do is_scoped = is_scoped or use.kind == 'scope' end
        if is_scoped and scoped >= gated then
          -- It stays where it is: what a brake or a breaker may hold any moment is claimed for free slots only.
          local from = item.from
          from.passed = (from.passed or 0) + 1
          if from.passed > STRETCH then from.items, from.is_over = {}, true end
        elseif #held >= MOST_HELD then
          is_more = true
          others.items, others.is_over = {}, true
          for name in pairs(lines) do
            if name ~= '' then lines[name] = nil end
          end
        else
          is_taken = admit(item)
          if is_taken and is_scoped then scoped = scoped + 1 end
        end
      end
      if is_taken then
        order[#order + 1] = item
        if is_fair then
          at = math.max(at, ends[tenant])
          ends[tenant] = at + 1 / weight_of(tenant)
          served[tenant] = true
        end
      end
    end
  end

  -- Virtual time begins anew, and all who stand in it are as far ahead as they were: a great one has no place for the
  -- small steps of great weights.
  local function from_zero()
    for _, key in ipairs({K.fair(queue), K.tenants(queue)}) do
      local found, shifted = call('ZRANGE', key, 0, -1, 'WITHSCORES'), {}
      for i = 1, #found, 2 do
        shifted[i], shifted[i + 1] = string.format('%.17g', math.max(0, found[i + 1] - at)), found[i]
      end
      write('ZADD', key, shifted)
    end
    for tenant in pairs(served) do ends[tenant] = ends[tenant] - at end
    at = 0
  end

  -- Write what was decided, many at a time.
  local gone, touched, blocked, stopped, states = {}, {}, {}, {}, {}
  local function goes_from(key, id)
    local list = gone[key] or {}
    list[#list + 1] = id
    gone[key] = list
  end
  local function goes(item)
    goes_from(item.from.key, item.id)
    if item.tenant and item.tenant ~= '' then
      goes_from(K.tenanted(queue), item.id)
      touched[item.tenant] = item.from.key
    end
  end
  local drawn = {ids = {}, envelopes = {}, holds = {}, behind = {}, scoped = scoped, is_more = is_more}
  local elsewhere = 0
  for _, item in ipairs(order) do
    if item.from == away then
      elsewhere = elsewhere + 1
    else
      local i = #drawn.ids + 1
      goes(item)
      drawn.ids[i], drawn.envelopes[i] = item.id, item.e
      drawn.holds[i], drawn.behind[i] = item.uses and #item.uses > 0, elsewhere
    end
  end
  for _, item in ipairs(held) do
    goes(item)
    local key, state, created = string.format('%d', item.key), item.state, read(item.e)
    state.s, state.G = 'blocked', item.gate
    blocked[#blocked + 1], blocked[#blocked + 2] = string.format('%d', state.t or created), item.id
    states[#states + 1], states[#states + 2] = item.id, pack(state)
    local list = stopped[item.gate] or {}
    list[#list + 1], list[#list + 2] = item.kind == 'fifo' and string.format('%d', state.N or created) or key, item.id
    stopped[item.gate] = list
    event(item.id, 'held', 'blocked', nil, nil, state.x, item.attempt)
  end
  for key, ids in pairs(gone) do write('ZREM', key, ids) end
  if #held > 0 then
    write('ZADD', K.blocked(queue), blocked)
    write('HSET', K.st, states)
    for gate, list in pairs(stopped) do
      write('ZADD', K.stopped(gate), list)
      call('SADD', K.closed, gate)
    end
  end
  for _, look in pairs(looks) do
    if look.is_changed then G.keep(look) end
  end
  if is_fair then
    if at > MOST_VIRTUAL then from_zero() end
    local now_at = string.format('%.17g', at)
    call('HSET', K.gate, 'tenants:' .. queue, now_at)
    for tenant in pairs(served) do
      local till = string.format('%.17g', ends[tenant])
      call('ZADD', K.fair(queue), till, tenant)
      if tenant ~= '' then call('ZADD', K.tenants(queue), 'XX', till, tenant) end
    end
    call('ZREMRANGEBYSCORE', K.fair(queue), '-inf', now_at)
    for tenant, line in pairs(touched) do
      if call('EXISTS', line) == 0 then call('ZREM', K.tenants(queue), tenant) end
    end
  end
  return drawn
end
