-- ending: one claim ends with an outcome, as finish.lua describes it in `others`.
-- Let the brake and the breakers of scopes know how an attempt ended.
local function count_end(j, o)
  local G, changed, keys, why = gates(), {}, {}, o.why or o.what
  local function look_at(key)
    if not changed[key] then
      changed[key] = G.look({key = key, kind = 'scope', name = ''})
      keys[#keys + 1] = key
    end
    return changed[key]
  end
  if o.brake then
    local look = look_at('scope:' .. o.brake)
    look.state = scopes().braked(look.state, now + o.delay, why)
    look.rests_at = scopes().rests_at(look.state)
  end
  if o.what == 'completed' or o.what == 'failed' then
    for _, use in ipairs(G.uses(j.env[OPTIONS])) do
      if use.breaker then
        local look = look_at(use.key)
        look.state = scopes().counted(look.state, use.breaker, o.to == 'completed', j.k, why)
        look.rests_at = scopes().rests_at(look.state, use.breaker.window)
      end
    end
  end
  table.sort(keys)
  for _, key in ipairs(keys) do G.keep(changed[key]) end
  for _, key in ipairs(keys) do open_gate(key) end
end

local function finish(j, o)
  local token, is_asked = j.token, j.q ~= nil
  leave(j)
  j.l = longer(j.l, o.log)
  local to = after_claim(j, o.to)
  if to ~= 'completed' then
    grow(j, to == 'cancelled' and 'cancelled' or o.what, o.error, token)
  end
  if not o.counts and not FINAL[to] then j.a = j.a - 1 end
  j.s, j.e = to, token
  j.R = to == 'completed' and o.result or nil
  j.u = j.u and FINAL[to] or nil
  if not (to == 'cancelled' and is_asked) then j.w = o.reason end
  if not FINAL[to] then j.t = now + (to == o.to and o.delay or 0) end
  j.g = to == 'dead' and (o.fingerprint or fingerprint(j.env[1], o.trace)) or nil
  enter(j, 'finished', token, token)
  if to == 'blocked' then wait_for(j.id, o.waits, o.timeout and now + o.timeout) end
  if o.leaves_turn then leave_turn(j) end
  if o.brake or is_gated(j.env) then count_end(j, o) end
end
