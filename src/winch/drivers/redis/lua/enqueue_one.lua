-- enqueue_one: -> ready, for one job that is plain or has gates, which most calls bring. Only what that takes: half of
-- the time of the whole enqueue goes into reading its arguments and making functions that one job never calls.
-- A:      no map, but ARGV: queue, task, head start in µs, '1' where it has gates, the gate of its FIFO key or '', id,
--         envelope
-- Return: the moment when stored; the id, when it was there; '+' when events are kept, and then nothing is stored
-- Keys:   meta, recorded, strict, ids, tasks, queues, env, st, ready, gated, members, waiting, bell
-- flags:
-- parts:  none
local call, queue, member, id = redis.call, ARGV[1], ARGV[5], ARGV[6]
local key = K.waiting(queue)
local is_more = call('EXISTS', key, K.recorded) > 0  -- than to store the job
if is_more and call('EXISTS', K.recorded) == 1 then return '+' end
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
if call('HSETNX', K.env, id, cmsgpack.pack(now) .. ARGV[7]) == 0 then return id end
call('ZADD', K.ids, '0', id)
if call('SADD', K.tasks(queue), ARGV[2]) > 0 then call('SADD', K.queues, queue) end
local ahead = tonumber(ARGV[3])
if ahead ~= 0 and call('SISMEMBER', K.strict, queue) == 1 then ahead = ahead * STRICT end
call('ZADD', ARGV[4] == '1' and K.gated(queue) or K.ready(queue), string.format('%d', now - ahead), id)

-- As `join` does for a new member.
if member ~= '' then
  local members, number = K.members(member), now
  local last = tonumber(call('ZRANGE', members, -1, -1, 'WITHSCORES')[2])
  if last then number = math.max(now, last + (last < EXACT and 1 or PAST_EXACT)) end
  call('ZADD', members, string.format('%d', number), id)
  call('HSET', K.st, id, cmsgpack.pack({N = number}))
end

-- As `wake` does for one job.
if is_more then
  call('ZREMRANGEBYSCORE', key, '-inf', now)
  local waiter = call('ZPOPMAX', key)[1]
  if waiter then
    call('RPUSH', K.bell(waiter), queue)
    call('EXPIRE', K.bell(waiter), 60)
  end
end
return now
