-- scopes: the brake and the breaker. The same in Lua as core/gates/scopes.py; made when the first is met.
-- state: until (closed till then), is_tripped (probes come first), let (how many since it opened), trips,
--        tripped_at (the last trip), why, probes, ends: {second, ok, failed} in the breaker's window
local made_scopes
local function scopes()
  if made_scopes then return made_scopes end
  local S = {}

  -- nil: this scope is neither braked nor tripped, and nothing is counted in that state.
  function S.held(look)
    local state = look.state
    return state and (state['until'] or 0) > 0 and state or nil
  end

  function S.passes(state, used)
    local till = state['until']
    if now < till then return false, till end
    if state.is_tripped then return used < (state.probes or 1), nil end
    local step = math.floor((now - till) / RAMP_STEP)
    if step >= RAMP_STEPS or (state.let or 0) < 2 ^ (step + 1) - 1 then return true, nil end
    return false, till + (step + 1) * RAMP_STEP
  end

  local function with(state, changes)
    local after = {}
    for field, value in pairs(state) do after[field] = value end
    for field, value in pairs(changes) do after[field] = value end
    return after
  end

  function S.taken(state)
    if not state.is_tripped and now - state['until'] >= RAMP_STEPS * RAMP_STEP then
      return {ends = state.ends, tripped_at = state.tripped_at}  -- the ramp is over
    end
    return with(state, {let = (state.let or 0) + 1})
  end

  -- Never shorter than it is held already.
  function S.braked(state, till, why)
    state = state or {}
    if till <= (state['until'] or 0) then return state end
    return with(state, {['until'] = till, let = 0, why = why})
  end

  -- The state after one of its jobs, claimed at that moment, has ended.
  function S.counted(state, spec, is_ok, claimed_at, why)
    state = state or {}
    -- It began before the trip and knows only what the trip knew.
    if claimed_at <= (state.tripped_at or 0) then return state end
    if state.is_tripped then
      if is_ok then  -- closed again, and ramped up
        return {['until'] = now, why = state.why, tripped_at = state.tripped_at}
      end
      local trips = state.trips or 0
      local hold = math.min(spec.hold * 2 ^ math.min(trips, 10), 20 * spec.hold)
      return with(state, {['until'] = now + hold, trips = trips + 1, tripped_at = now, why = why})
    end
    local second, oldest = math.floor(now / 1000000), math.floor((now - spec.window) / 1000000)
    local ends, failed, total = {}, 0, 0
    for _, one in ipairs(state.ends or {}) do
      if one[1] > oldest then ends[#ends + 1] = one end
    end
    local ok, bad = is_ok and 1 or 0, is_ok and 0 or 1
    local last = ends[#ends]
    if last and last[1] == second then
      ends[#ends] = {second, last[2] + ok, last[3] + bad}
    else
      ends[#ends + 1] = {second, ok, bad}
    end
    for _, one in ipairs(ends) do
      failed, total = failed + one[3], total + one[2] + one[3]
    end
    if total >= spec.of and failed / total >= spec.failures then
      return {
        ['until'] = now + spec.hold, is_tripped = true, trips = 1, tripped_at = now, probes = spec.probes or 1,
        why = string.format('%d of %d attempts failed; the last one: %s', failed, total, why),
      }
    end
    return with(state, {ends = ends})
  end

  -- The moment from which a state says nothing; nil where only an end of a job can tell.
  function S.rests_at(state, window)
    if state.is_tripped then return nil end
    local till = state['until'] or 0
    return math.max(till + RAMP_STEPS * RAMP_STEP, now + (window or 86400000000))
  end

  made_scopes = S
  return S
end
