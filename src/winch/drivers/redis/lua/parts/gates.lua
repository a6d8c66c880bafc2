-- gates: the gates of a job, a look at one, and whether it lets a job pass. The same in Lua as
-- core/gates/passes.py. Made when the first job with gates is met: a script that meets none pays nothing.
--
-- use:  as the options of a job carry it: key, kind, name, n, per, how, burst, weight, is_for_retries,
--       blocks_on_death, breaker
-- look: key, used, state, spec (as set in the store), turn, head, open_at; rests_at goes with the state
local made_gates
local function gates()
  if made_gates then return made_gates end
  local G, texts = {}, {}

  -- Text that was damaged by hand has no gates: the job runs rather than waits for ever.
  local function decoded(options)
    local is_json, said = pcall(cjson.decode, options)
    if not is_json or type(said) ~= 'table' or type(said.gates) ~= 'table' then return {} end
    for _, use in ipairs(said.gates) do
      if type(use) ~= 'table' or type(use.key) ~= 'string' or type(use.kind) ~= 'string' then return {} end
      use.name, use.n, use.weight = use.name or '', tonumber(use.n) or 0, tonumber(use.weight) or 1
    end
    return said.gates
  end

  function G.uses(options)
    if not options or string.sub(options, 1, #GATED) ~= GATED then return {} end
    local found = texts[options]
    if not found then
      found = decoded(options)
      texts[options] = found
    end
    return found
  end

  function G.look(use)
    local key, kind = use.key, use.kind
    local look = {key = key, used = 0}
    if kind == 'fifo' then
      look.turn = call('HGET', K.turn, key) or nil
      look.head = call('ZRANGE', K.members(key), 0, 0)[1]
      return look
    end
    if kind ~= 'limit' then
      local state = call('HGET', K.gate, key)
      look.state = state and read(state) or nil
      look.open_at = tonumber(call('ZSCORE', K.opens, key) or nil)
    end
    if kind ~= 'rate' then look.used = tonumber(call('HGET', K.used, key) or 0) end
    local set = use.name ~= '' and call('HGET', K.limits, use.name)
    if set then look.spec = read(set).spec end
    return look
  end

  -- Whether the gate is open for this job; if not, the moment it may be, where one is known.
  function G.passes(look, use, id, attempt)
    if use.kind == 'limit' then
      return look.used + use.weight <= (look.spec and look.spec.n or use.n), nil
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

  local function permit(look, id, weight)
    look.used = look.used + weight
    call('HSET', K.permits(look.key), id, weight)
    call('HINCRBY', K.used, look.key, weight)
  end

  -- Takes what the job needs of a gate that is open to it.
  function G.grant(look, use, id, attempt)
    if use.kind == 'limit' then
      permit(look, id, use.weight)
    elseif use.kind == 'rate' then
      if attempt > 0 or not use.is_for_retries then
        look.state, look.rests_at = rates().taken(look, use)
        look.is_changed = true
      end
    elseif use.kind == 'fifo' then
      if not look.turn then
        look.turn = id
        call('HSET', K.turn, use.key, id)
      end
    elseif use.kind == 'scope' then
      local state = scopes().held(look)
      if state then
        permit(look, id, 1)
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
