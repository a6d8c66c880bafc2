-- schedule_runs: what became of the latest windows, newest first; or how many of its jobs are not final.
-- A:      name; limit; or is_live
-- Return: runs; or a number
-- Keys:   windows, runs, st, run
-- flags:  no-writes
-- parts:  live
if A.is_live then
  local count = 0
  for _, packed in ipairs(call('HVALS', K.runs(A.name))) do
    local run = read(packed)
    if (run.kind == 'enqueued' or run.kind == 'triggered') and is_live(run.job) then count = count + 1 end
  end
  return count
end
return fetch('HMGET', K.runs(A.name), call('ZREVRANGE', K.windows(A.name), 0, A.limit - 1))
