-- enqueue_one: -> ready, for one plain job, which most calls bring. Only what that takes: half of the time
-- of the whole enqueue goes into reading its arguments and making functions that one job never calls.
-- A:      no map, but ARGV: queue, task, head start in µs, id, envelope
-- Return: the moment when stored; the id, when it was there; '+' when events are kept, and then nothing is stored
-- Keys:   meta, recorded, strict, ids, tasks, queues, env, ready, waiting, bell
-- flags:
-- parts:  none
local call, queue, id = redis.call, ARGV[1], ARGV[4]
local key = K.waiting(queue)
local is_more = call('EXISTS', key, K.recorded) > 0  -- than to store the job
if is_more and call('EXISTS', K.recorded) == 1 then return '+' end
local t = call('TIME')
local now = t[1] * 1000000 + t[2]
if call('HSETNX', K.env, id, cmsgpack.pack(now) .. ARGV[5]) == 0 then return id end
call('ZADD', K.ids, '0', id)
if call('SADD', K.tasks(queue), ARGV[2]) > 0 then call('SADD', K.queues, queue) end
local ahead = tonumber(ARGV[3])
if ahead ~= 0 and call('SISMEMBER', K.strict, queue) == 1 then ahead = ahead * STRICT end
call('ZADD', K.ready(queue), string.format('%d', now - ahead), id)

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
