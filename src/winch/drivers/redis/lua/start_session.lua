-- start_session: a session begins with a fresh lease. Repeating it changes nothing.
-- A:      now; id, lease; schedules: {name, definition, timing}. ARGV[2]: what it says of itself
-- Return: now
-- Keys:   sess, alive, beats, sched, sched_due, declares, declared, meta
-- flags:
-- parts:  schedule
if call('HSETNX', K.sess, A.id, pack(now) .. pack(A.lease) .. ARGV[2]) == 1 then
  call('ZADD', K.alive, string.format('%d', now + A.lease), A.id)
  call('HSET', K.beats, A.id, 0)
  declare(A.id, A.schedules)
end
return now
