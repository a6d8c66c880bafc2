-- gates: the gates of a job, a look at one, and whether it lets a job pass. The same in Lua as
-- core/gates/passes.py. Made when the first job with gates is met: a script that meets none pays nothing.
--
-- use:  as the options of a job carry it: key, kind, name, n, per, how, burst, weight, is_for_retries,
--       blocks_on_death, breaker
-- look: key, used, state, spec (as set in the store), turn, head, open_at; rests_at goes with the state. Of a limit that
--       allows more than the claiming session runs at once: own, how many jobs of that session have passed it
local made_gates
local function gates()
  if made_gates then return made_gates end
  local G, texts = {}, {}

  -- Text that was damaged by hand has no gates: the job runs rather than waits for ever.
  local function decoded(options)
    local is_json, fields = pcall(cjson.decode, options)
    if not is_json or type(fields) ~= 'table' or type(fields.gates) ~= 'table' then return {} end
    for _, use in ipairs(fields.gates) do
      if type(use) ~= 'table' or type(use.key) ~= 'string' or type(use.kind) ~= 'string' then return {} end
      use.name, use.n, use.weight = use.name or '', tonumber(use.n) or 0, tonumber(use.weight) or 1
    end
    return fields.gates
  end

  function G.uses(options)
    if type(options) ~= 'string' or string.sub(options, 1, #GATED) ~= GATED then return {} end
    local found = texts[options]
    if not found then
      found = decoded(options)
      texts[options] = found
    end
    return found
  end

  -- A session that runs so many jobs at once uses no more of a limit than that, however many it has claimed: `own` counts
  -- them. Only permits of weight 1, and only where the limit allows more than that.
  function G.own_field(key, session, at_once)
    return key .. '\n' .. session .. '\n' .. string.format('%d', at_once)
  end

  -- The gate and `at_once` of such a field.
  function G.of_field(field)
    local key, at_once = string.match(field, '^(.*)\n[^\n]*\n(%d+)$')
    return key, tonumber(at_once)
  end

  -- What a claim noted of limits that count what its session runs at once: key -> at_once; nil where there are none.
  function G.shared(passed)
    local found
    for _, use in ipairs(passed or {}) do
      if use[4] then
        found = found or {}
        found[use[1]] = use[4]
      end
    end
    return found
  end

  -- So many jobs more or less of each field. Answers how much more or less of each is in use.
  function G.count_own(fields, more)
    local kept, gone, used = {}, {}, {}
    for i, count in ipairs(fetch('HMGET', K.own, fields)) do
      local before, _, at_once = tonumber(count or 0), G.of_field(fields[i])
      local after = math.max(before + more[i], 0)
      used[i] = math.min(after, at_once) - math.min(before, at_once)
      if after > 0 then
        kept[#kept + 1], kept[#kept + 2] = fields[i], string.format('%d', after)
      else
        gone[#gone + 1] = fields[i]
      end
    end
    write('HSET', K.own, kept)
    write('HDEL', K.own, gone)
    return used
  end

  -- How much more of a limit is in use when the claiming session has this job, too.
  local function more_of(look, use)
    return look.own and use.weight == 1 and look.own >= A.at_once and 0 or use.weight
  end

  -- Looks at the gates of these uses, many at a time, where `looks` has none yet. `specs`: what is set for limits by
  -- name, as far as it was read.
  function G.look_at_all(uses, looks, specs)
    local fifo, counted, stored, shared, fields = {}, {}, {}, {}, {}
    for _, use in ipairs(uses) do
      local key, kind, name = use.key, use.kind, use.name
      if not looks[key] then
        local look = {key = key, used = 0}
        looks[key] = look
        if kind == 'fifo' then
          fifo[#fifo + 1] = key
        else
          if kind ~= 'limit' then stored[#stored + 1] = key end
          if kind ~= 'rate' then counted[#counted + 1] = key end
          if name ~= '' and specs[name] == nil then
            local set = call('HGET', K.limits, name)
            specs[name] = set and read(set).spec or false
          end
          look.spec = specs[name] or nil
          if kind == 'limit' and A.at_once and (look.spec or use).n > A.at_once then
            shared[#shared + 1], fields[#fields + 1] = look, G.own_field(key, A.session, A.at_once)
          end
        end
      end
    end
    for i, turn in ipairs(fetch('HMGET', K.turn, fifo)) do
      local look = looks[fifo[i]]
      look.turn = turn or nil
      -- Whose turn it is when one has it, the first member does not matter.
      if not turn then look.head = call('ZRANGE', K.members(fifo[i]), 0, 0)[1] end
    end
    for i, used in ipairs(fetch('HMGET', K.used, counted)) do looks[counted[i]].used = tonumber(used or 0) end
    for i, own in ipairs(fetch('HMGET', K.own, fields)) do shared[i].own = tonumber(own or 0) end
    if #stored > 0 then
      local open_at = fetch('ZMSCORE', K.opens, stored)
      for i, state in ipairs(fetch('HMGET', K.gate, stored)) do
        local look = looks[stored[i]]
        look.state = state and read(state) or nil
        look.open_at = tonumber(open_at[i] or nil)
      end
    end
  end

  function G.look(use)
    local looks = {}
    G.look_at_all({use}, looks, {})
    return looks[use.key]
  end

  -- Whether the gate is open for this job; if not, the moment it may be, where one is known.
  function G.passes(look, use, id, attempt)
    if use.kind == 'limit' then
      return look.used + more_of(look, use) <= (look.spec and look.spec.n or use.n), nil
    elseif use.kind == 'rate' then
      if use.is_for_retries and attempt == 0 then return true, nil end
      local next_at = rates().next(look, use)
      return not next_at, next_at
    elseif use.kind == 'fifo' then
      local first = look.turn or look.head
      return not first or first == id, nil
    elseif use.kind == 'scope' then
      local state = scopes().held(look)
      if state then return scopes().passes(state, look.used) end
    end
    return true, nil
  end

  -- Takes what the job needs of a gate that is open to it; `keep_all` writes it.
  function G.grant(look, use, id, attempt)
    if use.kind == 'limit' then
      -- The claim itself is the permit: what it has passed is noted in it, and its end gives that back.
      look.used, look.is_used = look.used + more_of(look, use), true
      use.at_once = look.own and use.weight == 1 and A.at_once or nil
      if use.at_once then look.own, look.is_owned = look.own + 1, true end
    elseif use.kind == 'rate' then
      if attempt > 0 or not use.is_for_retries then
        look.state, look.rests_at = rates().taken(look, use)
        look.is_changed = true
      end
    elseif use.kind == 'fifo' then
      if not look.turn then look.turn, look.is_taken = id, true end
    elseif use.kind == 'scope' then
      local state = scopes().held(look)
      if state then
        local permits = look.permits or {}
        look.used, look.is_used, look.permits = look.used + 1, true, permits
        permits[#permits + 1], permits[#permits + 2] = id, '1'
        look.state, look.is_changed = scopes().taken(state), true
        look.rests_at = scopes().rests_at(look.state)
      end
    end
  end

  -- How many of up to `most` waiting jobs like this would pass now; and when to look again for the others.
  function G.room(look, use, most)
    if use.kind == 'limit' then
      local n = look.spec and look.spec.n or use.n
      return math.max(0, math.min(most, math.floor((n - look.used) / use.weight))), nil
    end
    local tried = {key = look.key, used = look.used, state = look.state, spec = look.spec}
    for count = 0, most - 1 do
      local is_open, next_at = G.passes(tried, use, '', 1)
      if not is_open then return count, next_at end
      if use.kind == 'rate' then
        tried.state = rates().taken(tried, use)
      elseif use.kind == 'scope' then
        local state = scopes().held(tried)
        if state then tried.used, tried.state = tried.used + 1, scopes().taken(state) end
      end
    end
    return most, now
  end

  -- Writes what was granted at these gates.
  function G.keep_all(looks)
    local used, turns, own = {}, {}, {}
    for key, look in pairs(looks) do
      if look.is_owned then
        own[#own + 1], own[#own + 2] = G.own_field(key, A.session, A.at_once), string.format('%d', look.own)
      end
      if look.is_used then used[#used + 1], used[#used + 2] = key, wide(look.used) end
      if look.permits then write('HSET', K.permits(key), look.permits) end
      if look.is_taken then turns[#turns + 1], turns[#turns + 2] = key, look.turn end
      if look.is_changed then G.keep(look) end
    end
    write('HSET', K.used, used)
    write('HSET', K.own, own)
    write('HSET', K.turn, turns)
  end

  -- Writes what a gate remembers from now on.
  function G.keep(look)
    if next(look.state) == nil then
      call('HDEL', K.gate, look.key)
    else
      call('HSET', K.gate, look.key, pack(look.state))
    end
    if look.rests_at then
      call('ZADD', K.rests, string.format('%d', look.rests_at), look.key)
    else
      call('ZREM', K.rests, look.key)
    end
  end

  function G.open_at(key, moment)
    if moment then
      call('ZADD', K.opens, string.format('%d', moment), key)
      is_due = true  -- the process that opens gates may have to do so before its sleep ends
    else
      call('ZREM', K.opens, key)
    end
  end

  made_gates = G
  return G
end
