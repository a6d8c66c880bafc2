-- finish: running -> completed | retrying | scheduled | blocked | ready | cancelled | dead.
-- Fenced by (id, token).
-- A:      now; done: {ids, tokens, results} of plain completions (result false: none);
--         others: {behind: how many of done stand before it, id, token, to, what, delay, counts, result, error, reason, log, fingerprint, trace,
--         waits: {key, is_enough}, timeout, leaves_turn, brake, why: the end in a few words, for jobs that are held because of it}
-- Return: {answers to done, answers to others}: took | already | lost. A number instead of the first:
--         all of done took
-- Keys:   run, st, env, held, drop, keep, uniq, ukey, cancelling, ready, scheduled, retrying, …
-- flags:  allow-oom
-- parts:  put record waits fingerprint ending completing

local ids, tokens, results = A.done[1], A.done[2], A.done[3]
local answers, apart, ends = complete(ids, tokens, results)
leave_gates(ends)
local others, done_answers = end_others(ids, results, apart, A.others, finish), #ids
for i = 1, #ids do
  if not answers[i] then answers[i], done_answers = look_up(ids[i], tokens[i], 'completed'), answers end
end
done()
return {done_answers, others}
