-- draw: which jobs of one queue a claim takes where some have gates or tenants; see core/gates/draw.py.
-- One order for jobs without a tenant, plain and gated; between tenants the one with the least for its weight.
-- Keys: ready, gated, tenanted, line, tenants, fair, env, st, blocked, stopped, closed, opens, gate, rests,
--       used, permits, turn, members, limits
-- Jobs of one set that are read at once, and how many are held in one call.
local STRETCH, MOST_HELD = 50, 500
-- A claim ahead of free slots passes over so many jobs whose gates are closed; so many jobs with gates are read at once.
local PASSED, AT_ONCE = 10, 25
-- A rate of fewer a second is slow: FAST_RATE of core/gates/uses.py.
local FAST_RATE = 1000
-- Above this virtual time begins anew: a larger double has no place for 12 digits behind its point.
local MOST_VIRTUAL = 2 ^ 10

-- Puts it where it belongs in a list whose least stands last.
local function put_in(list, item)
  local from, to = 1, #list + 1
  while from < to do
    local middle = math.floor((from + to) / 2)
    if item < list[middle] then from = middle + 1 else to = middle end
  end
  table.insert(list, from, item)
end

local function draw(queue, free, gated)
  local G, looks, specs = gates(), {}, {}
  local order, held, scoped, is_more = {}, {}, 0, false
  local slots = A.slots or free
  local has_shut = A.in_cluster and call('EXISTS', K.shut) == 1

  local function cursor(key, step)
    return {key = key, at = 0, step = step, items = {}, place = 1}
  end

  -- Reads the next jobs of these sets whose tasks this worker knows.
  local function refill(cursors)
    local ids, owners, scores = {}, {}, {}
    for _, c in ipairs(cursors) do
      -- Between tenants turns decide: their lines are read without the keys.
      local found, width
      if c.is_of_tenant then
        found, width = call('ZRANGE', c.key, c.at, c.at + c.step - 1), 1
      else
        found, width = call('ZRANGE', c.key, c.at, c.at + c.step - 1, 'WITHSCORES'), 2
      end
      for i = 1, #found, width do
        local place = #ids + 1
        ids[place], owners[place], scores[place] = found[i], c, width == 2 and tonumber(found[i + 1])
      end
      c.at, c.is_over = c.at + c.step, #found < width * c.step
      c.items, c.place = {}, 1
    end
    local envelopes, states = fetch('HMGET', K.env, ids), fetch('HMGET', K.st, ids)
    for i, id in ipairs(ids) do
      if not A.tasks or A.tasks[task_of(envelopes[i])] then
        local items = owners[i].items
        items[#items + 1] = {id = id, key = scores[i], from = owners[i], e = envelopes[i], s = states[i]}
      end
    end
  end

  -- The next job of a set; nil at its end.
  local function peek(c)
    while not c.items[c.place] do
      if c.is_over then return nil end
      refill({c})
    end
    return c.items[c.place]
  end

  -- A job of this set stays where it is. After many, the rest does, too.
  local function pass_over(c, most)
    c.passed = (c.passed or 0) + 1
    if c.passed > most then c.items, c.is_over = {}, true end
  end

  -- Plain jobs and those with gates, as one line.
  local plain = cursor(K.ready(queue), free)
  local others = cursor(K.gated(queue), AT_ONCE)
  -- In a cluster: plain jobs of this queue in other parts, whose turn comes with them. The caller knows by
  -- how many are taken here how many of those were.
  local away = cursor(nil, 0)
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

  -- States that were read, by their text; not to be changed.
  local NEW, read_states = {}, {}
  local function state_of(text)
    if not text then return NEW end
    if not read_states[text] then read_states[text] = read(text) end
    return read_states[text]
  end

  -- What an admission has to know of a job, and of those after it in its set: gates are looked at many at a time.
  local function open_item(first)
    local c, uses = first.from, {}
    for place = c.place - 1, math.min(#c.items, c.place - 1 + free - #order) do
      local item = c.items[place]
      if not item.uses then
        item.attempt, item.uses = item.s and state_of(item.s).a or 0, G.uses(options_of(item.e))
        for _, use in ipairs(item.uses) do uses[#uses + 1] = use end
      end
    end
    G.look_at_all(uses, looks, specs)
  end

  -- Whether what is taken of this rate and not used would be missed.
  local function is_slow(use, attempt)
    if use.is_for_retries and attempt == 0 then return false end
    local spec = looks[use.key].spec or use
    return spec.n * 1000000 < FAST_RATE * spec.per
  end

  -- Whether what comes now is claimed ahead: a job that its gate stops stays ready. Where a claim for no free slot
  -- finds none, it blocks one job: the end that lets that one in wakes the worker.
  local function is_ahead()
    return #order > 0 and #order >= slots or slots == 0 and #held > 0
  end

  -- Grants all that the job needs, or notes the first gate that is closed.
  local function admit(item)
    for _, use in ipairs(item.uses) do
      local look = looks[use.key]
      local is_open, next_at = G.passes(look, use, item.id, item.attempt)
      if not is_open and is_ahead() then
        pass_over(item.from, PASSED)
        return false
      end
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

  -- Tenants by their start in virtual time, some at a time; '' are the jobs without one. Those whose time has come
  -- start now, by name (`due`); the others by their time (`times`), which many of them share (`later`).
  -- Here virtual time counts from where the last claim left it, with 12 digits: as `Fair` in core/gates/draw.py.
  local base, at = tonumber(call('HGET', K.gate, 'tenants:' .. queue) or 0), 0
  local function ahead_of(till)
    return till and math.max(0, math.floor((till - base) * 1e12 + 0.5) / 1e12) or 0
  end
  local lines, ends, weights, served, seen, due, times, later = {}, {}, {}, {}, 0, {}, {}, {}
  local is_fair = call('EXISTS', K.tenants(queue)) == 1
  local function after(a, b) return a > b end
  local function stands(tenant)
    local time = ends[tenant]
    if time <= at then return put_in(due, tenant) end
    local some = later[time]
    if some then
      some[#some + 1] = tenant
    else
      put_in(times, time)
      later[time] = {tenant}
    end
  end
  -- Those of the next time become due.
  local function come_due()
    local time = times[#times]
    local some = later[time]
    times[#times], later[time] = nil, nil
    if #due == 0 then
      table.sort(some, after)
      due = some
    else
      for _, tenant in ipairs(some) do put_in(due, tenant) end
    end
  end
  local function more_tenants()
    local names = call('ZRANGE', K.tenants(queue), seen, seen + 2 * free + STRETCH - 1)
    if #names == 0 then return false end
    local step = math.min(free + 1, STRETCH, math.ceil(free / #names) + 1)
    local shares, first = {}, {}
    for i, tenant in ipairs(names) do shares[i] = 'tenant:' .. tenant end
    local till, set = fetch('ZMSCORE', K.fair(queue), names), fetch('HMGET', K.limits, shares)
    for i, tenant in ipairs(names) do
      lines[tenant] = cursor(K.line(queue, tenant), step)
      lines[tenant].is_of_tenant = true
      ends[tenant] = ahead_of(till[i])
      weights[tenant] = set[i] and math.max(1, read(set[i]).spec.n) or 1
      stands(tenant)
      if i <= free - #order then first[i] = lines[tenant] end
    end
    if seen == 0 then refill(first) end
    seen = seen + #names
    return true
  end
  lines[''] = plain
  if is_fair then
    ends[''], weights[''] = ahead_of(call('ZSCORE', K.fair(queue), '')), 1
    stands('')
    more_tenants()
  end

  local function next_line()
    if not is_fair then return lines[''] and '' or nil end
    -- A tenant of a later time has its turn now, but only its start moves virtual time.
    if #due == 0 and #times > 0 then come_due() end
    return due[#due]
  end

  -- The line of this tenant, which is the next one, is at its end.
  local function leave_line(tenant)
    lines[tenant] = nil
    if is_fair then due[#due] = nil end
  end

  -- The next one has had a turn.
  local function serve(tenant)
    due[#due] = nil
    at = math.max(at, ends[tenant])
    while #times > 0 and times[#times] <= at do come_due() end
    ends[tenant] = at + 1 / weights[tenant]
    served[tenant] = true
    stands(tenant)
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
      leave_line(tenant)
    elseif item then
      item.from.place = item.from.place + 1
      local is_taken = item.from == plain or item.from == away
      if not is_taken then
        if not item.uses then open_item(item) end
        item.tenant = tenant
        local is_scoped, is_shut = false, has_shut and shut_of(item.uses)
        for _, use in ipairs(item.uses) do
          is_scoped = is_scoped or use.kind == 'scope' or (use.kind == 'rate' and is_slow(use, item.attempt))
        end
        if is_shut or is_scoped and scoped >= gated then
          -- It stays where it is: it is claimed for free slots only, as core/gates/uses.py says, or its gates move.
          pass_over(item.from, STRETCH)
        elseif #held >= MOST_HELD then
          is_more = true
          others.items, others.is_over = {}, true
          for name in pairs(lines) do
            if name ~= '' then lines[name] = nil end
          end
          due, times, later = {}, {}, {}
          if is_fair and lines[''] then stands('') end
        else
          is_taken = admit(item)
          if is_taken and is_scoped then scoped = scoped + 1 end
        end
      end
      if is_taken then
        order[#order + 1] = item
        if is_fair then serve(tenant) end
      end
    end
  end

  -- Restart virtual time at zero and keep the distances between tenants: a large number cannot represent the small
  -- steps of large weights.
  local function from_zero()
    for _, key in ipairs({K.fair(queue), K.tenants(queue)}) do
      local found, shifted = call('ZRANGE', key, 0, -1, 'WITHSCORES'), {}
      for i = 1, #found, 2 do
        shifted[i], shifted[i + 1] = string.format('%.17g', math.max(0, found[i + 1] - base - at)), found[i]
      end
      write('ZADD', key, shifted)
    end
    base = -at
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
  local drawn = {
    ids = {}, envelopes = {}, states = {}, holds = {}, behind = {}, scoped = scoped, is_more = is_more,
  }
  local elsewhere = 0
  for _, item in ipairs(order) do
    if item.from == away then
      elsewhere = elsewhere + 1
    else
      local i = #drawn.ids + 1
      goes(item)
      drawn.ids[i], drawn.envelopes[i], drawn.states[i] = item.id, item.e, item.s
      drawn.holds[i], drawn.behind[i] = item.uses and #item.uses > 0 and item.uses, elsewhere
    end
  end
  local texts = {}  -- gate -> state before -> after
  for _, item in ipairs(held) do
    goes(item)
    local gate, state = item.gate, state_of(item.s)
    local score = item.key or tonumber(call('ZSCORE', item.from.key, item.id))
    local of_gate = texts[gate] or {}
    texts[gate] = of_gate
    local text = of_gate[item.s]
    if not text then
      local after = item.s and read(item.s) or {}
      after.s, after.G = 'blocked', gate
      text = pack(after)
      of_gate[item.s] = text
    end
    local is_read, created = pcall(read, string.sub(item.e, 1, 9))
    created = is_read and tonumber(created) or 0  -- damaged bytes: a later claim ends the job
    blocked[#blocked + 1], blocked[#blocked + 2] = string.format('%d', state.t or created), item.id
    states[#states + 1], states[#states + 2] = item.id, text
    if item.kind == 'fifo' then score = state.N or created end
    local list = stopped[gate] or {}
    list[#list + 1], list[#list + 2] = string.format('%d', score), item.id
    stopped[gate] = list
    event(item.id, 'held', 'blocked', nil, nil, state.x, item.attempt)
  end
  for key, ids in pairs(gone) do write('ZREM', key, ids) end
  if #held > 0 then
    local closed = {}
    write('ZADD', K.blocked(queue), blocked)
    write('HSET', K.st, states)
    for gate, list in pairs(stopped) do
      write('ZADD', K.stopped(gate), list)
      closed[#closed + 1] = gate
    end
    write('SADD', K.closed, closed)
  end
  G.keep_all(looks)
  if is_fair then
    if base + at > MOST_VIRTUAL then from_zero() end
    local now_at = string.format('%.17g', base + at)
    call('HSET', K.gate, 'tenants:' .. queue, now_at)
    local fair, starts = {}, {}
    for tenant in pairs(served) do
      local till = string.format('%.17g', base + ends[tenant])
      fair[#fair + 1], fair[#fair + 2] = till, tenant
      if tenant ~= '' then starts[#starts + 1], starts[#starts + 2] = till, tenant end
    end
    write('ZADD', K.fair(queue), fair)
    for i = 1, #starts, STEP do
      call('ZADD', K.tenants(queue), 'XX', unpack(starts, i, math.min(i + STEP - 1, #starts)))
    end
    call('ZREMRANGEBYSCORE', K.fair(queue), '-inf', now_at)
    for tenant, line in pairs(touched) do
      if call('EXISTS', line) == 0 then call('ZREM', K.tenants(queue), tenant) end
    end
  end
  return drawn
end
