-- suspect: a job whose process died under it; dead when that happened as often as A.rule says. One that has
-- something to undo may die so often again while it does that.
local function recent(history, what)
  local times = 0
  for _, entry in ipairs(history) do
    if entry.what == 'retried' then
      times = 0
    elseif entry.what == what and entry.at > now - A.rule.within then
      times = times + 1
    end
  end
  return times
end

local function suspect(j, what, cause, trace, by)
  local token = j.token
  leave(j)
  grow(j, what, {type = TYPES[what], message = cause}, by)
  local times = recent(j.H, what)
  local most = A.rule.most * (j.U and UNDO_LIVES or 1)
  j.s = after_claim(j, times >= most and 'dead' or 'ready')
  j.a = j.a - 1
  if what == 'crashed' then j.c = times else j.r = times end
  j.u = true
  if by then j.e = by end
  if j.s == 'dead' then
    j.w = string.format('%s %d times; last cause: %s', what, times, cause)
    j.g = fingerprint(j.env[1], trace)
  else
    j.g = nil
  end
  enter(j, 'rescued', token, by)
end
