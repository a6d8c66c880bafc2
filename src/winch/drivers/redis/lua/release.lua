-- release: running -> ready | cancelled. Fenced by (id, token); the attempt is handed back.
-- A:      now; claims: {id, token}; started: their handlers had begun
-- Return: took | already | lost for each
-- Keys:   run, st, env, held, ready, cancelling, cancelled, drop, uniq, ukey, waiting, bell, events
-- flags:  allow-oom
-- parts:  put record
local answers = {}
for i, claim in ipairs(A.claims) do
  local j = held_by(claim)
  if j then
    give_back(j, claim[2], true, A.started)
    answers[i] = 'took'
  else
    answers[i] = look_up(claim[1], claim[2], 'ready', 'released')
  end
end
done()
return answers
