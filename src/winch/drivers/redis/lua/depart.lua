-- depart: jobs leave their shard for home; all there is of each is kept as a message until `forget`. Running ones
-- as they run, by their claim; with a token of true those that rest and are retried; with {queue}
-- instead of a token those that are ready in it.
-- A:      claims: {id, token}; a token of false finds messages only; confirm
-- Return: for each: its message, also one that was left before; '' where there is none
-- Keys:   run, env, st, held, keep, ids, cancelling, changes, leaving, meta; of those that are ready: ready
-- flags:
-- parts:  put record
-- WAIT waits for what its own connection wrote.
if A.confirm then call('HSET', K.meta, 'confirmed_at', string.format('%d', now)) end
local function chosen(claim)
  local token = claim[2]
  if not token then return nil end
  if type(token) == 'string' then return held_by(claim) end
  local j = load(claim[1])
  if not j then return nil end
  if token == true then return MAY.retry[j.s] and j or nil end
  return j.s == 'ready' and j.env[QUEUE] == token[1] and j or nil
end

local out = {}
for i, claim in ipairs(A.claims) do
  local id = claim[1]
  local j = chosen(claim)
  if j then
    call('HSET', K.leaving, id, pack({
      call('HGET', K.env, id), call('HGET', K.st, id), call('HGET', K.run, id),
      call('HGET', K.keep, id), call('HGET', K.changes, id),
    }))
    leave(j)
    for _, key in ipairs({K.env, K.st, K.keep, K.changes}) do call('HDEL', key, id) end
    call('ZREM', K.ids, id)
  end
  out[i] = call('HGET', K.leaving, id) or ''
end
return out
