-- hold_scope: a person holds a scope for a time, or opens it: blocked -> ready.
-- A:      now; key, hold (false: open it), why
-- Return: 1, or 0 where there was nothing to open
-- Keys:   as admit
-- flags:
-- parts:  put record
local G, S = gates(), scopes()
local look = G.look({key = A.key, kind = 'scope', name = ''})
if A.hold then
  look.state = S.braked(look.state, now + A.hold, A.why)
else
  local state = S.held(look)
  if not state or (not state.is_tripped and state['until'] <= now) then return 0 end
  look.state = {['until'] = now, why = state.why, tripped_at = math.max(state.tripped_at or 0, now)}
end
look.rests_at = S.rests_at(look.state)
G.keep(look)
open_gate(A.key)
done()
return 1
