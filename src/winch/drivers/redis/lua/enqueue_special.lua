-- enqueue_special: -> ready | scheduled | blocked, for jobs of any kind. All of the call or nothing.
-- A:      now; confirm; replicas; names: queue -> tasks; is_repeat; jobs: see parts/store.lua. ARGV[2…]: their
--         envelopes, in order; waits: {id, {key, is_enough}, …}, reason (why such jobs are blocked); claim:
--         {id, token} of the job that adds them, nil: any caller; fence: the number of the call, nil: any
-- Return: msgpack: {twice = id}, {lost}, {shut} or {gone = family of gates that is at home now} and nothing is stored; or {answers}: {is_new, holder, is_replaced} each, and now
-- Keys:   parcels, env, ids, st, ready, scheduled, blocked, queues, tasks, keep, uniq, ukey, awaited, waiters, wants, …
-- flags:
-- parts:  replicas put record homes waits store
if A.claim and not held_by(A.claim) then return pack({lost = true}) end
if A.fence and A.fence < tonumber(call('HGET', K.parcels, 'fence') or '0') then return pack({shut = true}) end
-- A repeat writes nothing else, and WAIT waits for what its own connection wrote.
if A.confirm then call('HSET', K.meta, 'confirmed_at', string.format('%d', now)) end

local answers, twice, gone = store(with_envelopes(A.jobs), A.names, A.is_repeat)
if twice then return pack({twice = twice}) end
if gone then return pack({gone = gone}) end

-- New ones are blocked, one that is blocked already waits for more; what the call only repeats stays.
local is_new = {}
for place, job in ipairs(A.jobs) do is_new[job[ID]] = is_new[job[ID]] or answers[place][1] end
for _, one in ipairs(A.waits or {}) do
  local id = one[1]
  local j = is_new[id] ~= false and load(id)
  if j and is_new[id] then
    if j.s == 'ready' then rings[j.env[QUEUE]] = rings[j.env[QUEUE]] - 1 end
    leave(j)
    j.s, j.w = 'blocked', A.reason
    enter(j, 'held', nil, nil)
  end
  if j and j.s == 'blocked' then wait_for(id, one[2], nil) end
end
done()
return pack({answers = answers, now = now})
