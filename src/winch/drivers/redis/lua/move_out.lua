-- move_out: jobs that do not run and that nothing ties to others leave the store; all there is of them is kept
-- as a parcel. Answers the parcel that is open, where there is one.
-- A:      now; move, number, ids, is_whole: all of them, whatever ties them, or none
-- Return: the number of the open parcel, then id, envelope and state ('' where there is none) of each of its jobs
-- Keys:   parcels, parcel; as delete
-- flags:  allow-oom
-- parts:  put record remove
local function is_tied(j)
  if j.s == 'running' or (j.s == 'blocked' and not j.G) then return true end
  local headers = j.env[HEADERS] or ''
  for _, mark in ipairs({INPUTS, AWAITED}) do
    if string.find(headers, mark, 1, true) then return true end
  end
  return false
end

local open_field, last_field = 'open:' .. A.move, 'last:' .. A.move
if call('HEXISTS', K.parcels, open_field) == 0
    and A.number > tonumber(call('HGET', K.parcels, last_field) or '0') then
  local taken, may_go = 0, true
  for _, id in ipairs(A.is_whole and A.ids or {}) do
    local j = load(id)
    may_go = may_go and j and not j.is_damaged and j.s ~= 'running'
  end
  for _, id in ipairs(may_go and A.ids or {}) do
    local j = load(id)
    if j and not j.is_damaged and (A.is_whole or not is_tied(j)) then
      call('RPUSH', K.parcel(A.move), id, call('HGET', K.env, id), call('HGET', K.st, id) or '')
      event(id, 'deleted', nil, nil, nil, j.x, j.a)
      remove(j)
      taken = taken + 1
    end
  end
  call('HSET', K.parcels, last_field, A.number)
  if taken > 0 then call('HSET', K.parcels, open_field, A.number) end
  done()
end
local out = {tonumber(call('HGET', K.parcels, open_field) or '0')}
for _, part in ipairs(call('LRANGE', K.parcel(A.move), 0, -1)) do out[#out + 1] = part end
return out
