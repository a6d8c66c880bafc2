-- rates: how much of a rate is used, and when there will be room. The same in Lua as core/gates/rates.py.
-- Made when the first rate is met.
local made_rates
local function rates()
  if made_rates then return made_rates end
  local R = {}

  -- A sliding window with more takes than this joins those that lie closest together.
  local MANY_TAKES = 256

  local function numbers(look, use)
    local spec = look.spec or use
    return spec.n, math.max(1, spec.per or 0), spec.how or 'sliding', spec.burst or 0
  end

  local function level(state, n, per, burst)
    local most = burst > 0 and burst or n
    if not state.level then return most end
    return math.min(most, state.level + math.max(0, now - state.at) * n / per)
  end

  -- The takes of a sliding window that still count, and their weight: worked out once for all jobs of a call.
  local function recent(look, per)
    if not look.takes then
      local takes, total = {}, 0
      for _, take in ipairs((look.state or {}).takes or {}) do
        if take[1] + per > now then
          takes[#takes + 1] = take
          total = total + take[2]
        end
      end
      look.takes, look.total = takes, total
    end
    return look.takes
  end

  local function used_in(state, window)
    return state.from == window and state.used or 0
  end

  -- nil: there is room now. Else the moment at which there will be, if no other job takes it.
  function R.next(look, use)
    local n, per, how, burst = numbers(look, use)
    local state, weight = look.state or {}, use.weight
    if how == 'fixed' then
      local window = now - now % per
      if used_in(state, window) + weight <= n then return nil end
      return window + per
    elseif how == 'bucket' then
      local there = level(state, n, per, burst)
      if there >= weight - 1e-6 then return nil end
      return now + math.min(math.max(1, math.ceil((weight - there) * per / n)), LONGEST)
    end
    local takes = recent(look, per)
    local over = look.total + weight - n
    if over <= 0 then return nil end
    for _, take in ipairs(takes) do
      over = over - take[2]
      if over <= 0 then return take[1] + per end
    end
    return now + per  -- heavier than the whole rate: nothing but a change of it helps
  end

  -- The state after the weight was taken, and the moment from which it says nothing.
  function R.taken(look, use)
    local n, per, how, burst = numbers(look, use)
    local state, weight = look.state or {}, use.weight
    if how == 'fixed' then
      local window = now - now % per
      return {from = window, used = used_in(state, window) + weight}, window + per
    elseif how == 'bucket' then
      local left = math.floor((level(state, n, per, burst) - weight) * 1e6 + 0.5) / 1e6
      local most = burst > 0 and burst or n
      return {level = left, at = now}, now + math.min(math.ceil((most - left) * per / n), LONGEST)
    end
    local takes = recent(look, per)
    look.total = look.total + weight
    local last = takes[#takes]
    if last and (last[1] == now
        or #takes >= MANY_TAKES and now - takes[#takes - 1][1] < math.floor(per / MANY_TAKES)) then
      takes[#takes] = {now, last[2] + weight}
    else
      takes[#takes + 1] = {now, weight}
    end
    return {takes = takes}, now + per
  end

  made_rates = R
  return R
end
