-- note: keeps what a running handler reports. Fenced by (id, token).
-- A:      claim: {id, token}; progress, checkpoint, log; has_undo (nil: as it is), forgets_cancel
-- Return: took | lost
-- Keys:   run, st, env, cancelling
-- flags:
-- parts:  put record
local j = held_by(A.claim)
if not j then return 'lost' end
j.p = A.progress or j.p
j.h = A.checkpoint or j.h
j.l = longer(j.l, A.log)
if A.has_undo ~= nil then j.U = A.has_undo or nil end
if A.forgets_cancel then
  j.q = nil
  call('SREM', K.cancelling, j.id)
end
save(j)
return 'took'
