-- set_queue: what claims of this queue read from now on. Jobs that run count against its concurrency.
-- A:      now; queue, concurrency (false: any number), is_strict; is_shard: of a cluster, whose jobs are counted at home;
--         number: of the rule in a cluster, nothing is set where a later one is
-- Return: {1 where the order has changed, also by an earlier call that was interrupted: rescore follows; in a shard with
--         a concurrency the ids and tokens of its running jobs, which go home}
-- Keys:   ruled, caps, strict, unsorted, run, used, permits, waiting, bell
-- flags:
-- parts:  put
local gate, away = 'queue:' .. A.queue, {}
if A.number then
  if A.number < tonumber(call('HGET', K.ruled, A.queue) or 0) then return {0, {}} end
  call('HSET', K.ruled, A.queue, string.format('%d', A.number))
end
if A.concurrency then
  -- From a shard nothing is claimed: its jobs go home first.
  call('HSET', K.caps, A.queue, A.is_shard and '0' or string.format('%d', A.concurrency))
  local runs, permits, held = call('HGETALL', K.run), {}, {}
  for i = 1, #runs, 2 do
    local claim = read(runs[i + 1])
    if claim[4] == A.queue then
      permits[#permits + 1], permits[#permits + 2] = runs[i], '1'
      claim[5] = true
      held[#held + 1], held[#held + 2] = runs[i], pack(claim)
      away[#away + 1], away[#away + 2] = runs[i], claim[1]
    end
  end
  if #permits > 0 and not A.is_shard then
    write('HSET', K.run, held)
    write('HSET', K.permits(gate), permits)
    call('HSET', K.used, gate, call('HLEN', K.permits(gate)))
  end
else
  call('HDEL', K.caps, A.queue)
end
ring(A.queue)
done()
if call(A.is_strict and 'SADD' or 'SREM', K.strict, A.queue) == 1 then call('SADD', K.unsorted, A.queue) end
return {call('SISMEMBER', K.unsorted, A.queue), A.is_shard and away or {}}
