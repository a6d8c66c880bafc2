-- change_schedule: a schedule's row, runs and jobs, all together, where the row is still the one by which
-- the change was decided (its v; 0: there was none). What it comes to is decided in storage/decide/schedules.py.
-- A:      now; name, v; is_removed; row (nil: as it is), definition (nil: as it is); is_code (of a new one); keep, held_note;
--         runs: {window, kind, at, job, note, place of its job}, false where there is none;
--         names, jobs: see parts/store.lua. ARGV[2…]: envelopes
-- Return: nil: the row is another by now; or the runs that were written, {place, holder or ''} each
-- Keys:   sched, sched_due, declared, windows, runs, meta, and as enqueue_special
-- flags:
-- parts:  put record homes live store schedule
local s = call('HGET', K.sched, A.name)
local row = s and read(s)
if (row and row.v or 0) ~= A.v then return nil end

if A.is_removed then
  call('HDEL', K.sched, A.name)
  call('ZREM', K.sched_due, A.name)
  call('DEL', K.windows(A.name), K.runs(A.name))
  return {}
end

-- A window that has its run is done: neither it nor its job is written again. Only a run without a job gives
-- way to one with a job.
local GIVES_WAY = {missed = true, skipped = true, held = true}
local function is_open(run)
  local there = call('HGET', K.runs(A.name), string.format('%d', run[1]))
  return not there or (run[2] == 'enqueued' and GIVES_WAY[read(there).kind])
end
local jobs, answer_of, out = with_envelopes(A.jobs), {}, {}
local open, stored = {}, {}
for place, run in ipairs(A.runs) do
  if is_open(run) then
    open[#open + 1] = place
    if run[6] then stored[#stored + 1] = jobs[run[6]] end
  end
end
-- The id of a window's job is made of the window: one that is there is this one.
for place, answer in ipairs(store(stored, A.names, true)) do answer_of[stored[place][ID]] = answer end

for _, place in ipairs(open) do
  local run = A.runs[place]
  local window, answer = string.format('%d', run[1]), run[6] and answer_of[run[4]]
  local holder = answer and answer[2] or nil
  -- A job may outlive the run of its window, and a trigger may be repeated.
  if not answer or holder or answer[1] then
    local kept = {window = run[1], kind = run[2], at = run[3], job = run[4] or nil, note = run[5] or nil}
    if holder then kept.kind, kept.job, kept.note = 'held', holder, A.held_note end
    call('HSET', K.runs(A.name), window, pack(kept))
    call('ZADD', K.windows(A.name), window, window)
    out[#out + 1] = {place, holder or ''}
  end
end
local over = call('ZCARD', K.windows(A.name)) - A.keep
for _, window in ipairs(over > 0 and call('ZRANGE', K.windows(A.name), 0, over - 1) or {}) do
  local run = call('HGET', K.runs(A.name), window)
  if not is_live(read(run).job) then
    call('HDEL', K.runs(A.name), window)
    call('ZREM', K.windows(A.name), window)
  end
end

local after = A.row or row
after.definition = A.definition or row.definition
after.is_code = row and row.is_code or A.is_code or nil
write_schedule(A.name, after)
done()
return out
