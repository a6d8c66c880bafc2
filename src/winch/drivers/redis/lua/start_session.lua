-- start_session: a session begins with a fresh lease. Repeating it changes nothing.
-- A:      now; id, lease. ARGV[2]: what it says of itself
-- Return: now
-- Keys:   sess, alive, beats
-- flags:
-- parts:
if call('HSETNX', K.sess, A.id, pack(now) .. pack(A.lease) .. ARGV[2]) == 1 then
  call('ZADD', K.alive, string.format('%d', now + A.lease), A.id)
  call('HSET', K.beats, A.id, 0)
end
return now
