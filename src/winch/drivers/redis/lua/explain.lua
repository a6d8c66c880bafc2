-- explain: what else there is to say about one job.
-- A:      now; id, queue, key: its unique key where it is final
-- Return: {now, paused, ready jobs before it or -1, the data of live sessions, the holder of the key}
-- Keys:   paused, ready, gated, tenanted, alive, sess, uniq
-- flags:  no-writes
-- parts:  ahead
local ahead = -1
for _, set in ipairs(sets_of(A.queue)) do
  local key = call('ZSCORE', set, A.id)
  if key then ahead = call('ZRANK', set, A.id) + ahead_in_others(A.queue, key, A.id, set) end
end
return {
  now, call('HGET', K.paused, A.queue), ahead,
  fetch('HMGET', K.sess, call('ZRANGE', K.alive, 0, -1)), A.key and call('HGET', K.uniq, A.key) or '',
}
