-- note: keeps what running handlers report. Each fenced by (id, token). With a number that is not higher than
--         the one of the claim's last note it changes nothing: it is a late or a repeated one.
-- A:      notes: {claim: {id, token}; progress, checkpoint, log, has_undo, forgets_cancel (nil: as it is),
--         number (nil: has none)}
-- Return: took | lost for each
-- Keys:   run, st, env, cancelling
-- flags:
-- parts:  put record
local answers = {}
for i, note in ipairs(A.notes) do
  local j = held_by(note.claim)
  local last = j and note.number and j.M
  if j and not (last and last[1] == j.token and last[2] >= note.number) then
    if note.number then j.M = {j.token, note.number} end
    j.p = note.progress or j.p
    j.h = note.checkpoint or j.h
    j.l = longer(j.l, note.log)
    if note.has_undo ~= nil then j.U = note.has_undo or nil end
    if note.forgets_cancel then
      j.q = nil
      call('SREM', K.cancelling, j.id)
    end
    save(j)
  end
  answers[i] = j and 'took' or 'lost'
end
return answers
