-- depart: jobs leave their shard for home; all there is of each is kept as a message until `forget`. Running ones
-- as they run, by their claim; with a token of true those that rest and are retried; with {queue}
-- instead of a token those that are ready in it; with 1 those of any state.
-- One with a gate that is not shut here stays.
-- A:      claims: {id, token}; a token of false finds messages only; confirm
-- Return: for each: its message, also one that was left before; '' where there is none; spread:FAMILY where it stays
-- Keys:   run, env, st, held, keep, ids, cancelling, changes, leaving, meta; of those that are ready: ready
-- flags:
-- parts:  put record homes
-- WAIT waits for what its own connection wrote.
if A.confirm then call('HSET', K.meta, 'confirmed_at', string.format('%d', now)) end
local function chosen(claim)
  local token = claim[2]
  if not token then return nil end
  if type(token) == 'string' then return held_by(claim) end
  local j = load(claim[1])
  if not j then return nil end
  if type(token) == 'number' then return j end
  if token == true then return MAY.retry[j.s] and j or nil end
  return j.s == 'ready' and j.env[QUEUE] == token[1] and j or nil
end

-- A family of gates that is not shut yet: its jobs stay here until it is.
local function spread_of(uses)
  for _, use in ipairs(uses) do
    local family = family_of(use)
    if family and call('SISMEMBER', K.shut, family) == 0 then return family end
  end
end

-- What the job has of its gates: {key, number in it or false, whether it has its turn, permits or false, whether these are
-- noted in its claim, and the field of `own` that counts them, or false}
local function taken_along(j, uses)
  local kept, shared = {}, gates().shared(j.passed) or {}
  for _, use in ipairs(uses) do
    local key = use.key
    local number, weight = call('ZSCORE', K.members(key), j.id), call('HGET', K.permits(key), j.id)
    local has_turn, is_limit, field = call('HGET', K.turn, key) == j.id, use.kind == 'limit', false
    if is_limit and j.s == 'running' and j.holds then
      weight = use.weight
      field = shared[key] and gates().own_field(key, j.x, shared[key]) or false
    end
    if number or weight or has_turn then kept[#kept + 1] = {key, number, has_turn, weight, is_limit, field} end
    call('ZREM', K.members(key), j.id)
    if has_turn then call('HDEL', K.turn, key) end
    if weight then
      if not is_limit then call('HDEL', K.permits(key), j.id) end
      if field then weight = -gates().count_own({field}, {-1})[1] end
      local left = tonumber(call('HGET', K.used, key) or 0) - weight
      if left > 0 then call('HSET', K.used, key, wide(left)) else call('HDEL', K.used, key) end
    end
  end
  return kept
end

local out = {}
for i, claim in ipairs(A.claims) do
  local id = claim[1]
  local j = chosen(claim)
  local uses = j and gates().uses(j.env[OPTIONS]) or {}
  local spread = j and #uses > 0 and spread_of(uses)
  if spread then
    out[i], j = 'spread:' .. spread, nil
  elseif j and j.s == 'blocked' and j.G then  -- at home a claim decides anew
    leave(j)
    j.s = 'ready'
    enter(j, 'admitted', nil, nil)
  end
  if j then
    local kept = taken_along(j, uses)
    call('HSET', K.leaving, id, pack({
      call('HGET', K.env, id), call('HGET', K.st, id), call('HGET', K.run, id),
      call('HGET', K.keep, id), call('HGET', K.changes, id), kept,
    }))
    leave(j)
    for _, key in ipairs({K.env, K.st, K.keep, K.changes}) do call('HDEL', key, id) end
    call('ZREM', K.ids, id)
  end
  out[i] = out[i] or call('HGET', K.leaving, id) or ''
end
return out
