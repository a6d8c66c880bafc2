-- note: keeps what a running handler reports. Fenced by (id, token).
-- A:      claim: {id, token}; progress, checkpoint, log
-- Return: took | lost
-- Keys:   run, st, env
-- flags:
-- parts:  put record
local j = held_by(A.claim)
if not j then return 'lost' end
j.p = A.progress or j.p
j.h = A.checkpoint or j.h
j.l = longer(j.l, A.log)
save(j)
return 'took'
