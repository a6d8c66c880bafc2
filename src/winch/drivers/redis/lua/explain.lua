-- explain: what else there is to say about one job.
-- A:      now; id, queue, key: its unique key where it is final
-- Return: {now, paused, ready jobs before it or -1, what live sessions said, who has the key}
-- Keys:   paused, ready, gated, tenanted, alive, sess, uniq
-- flags:  no-writes
-- parts:
local sets, ahead = {K.ready(A.queue), K.gated(A.queue), K.tenanted(A.queue)}, -1
for _, mine in ipairs(sets) do
  local score = call('ZSCORE', mine, A.id)
  if score then
    ahead = call('ZRANK', mine, A.id)
    for _, other in ipairs(sets) do
      if other ~= mine then ahead = ahead + call('ZCOUNT', other, '-inf', '(' .. score) end
    end
  end
end
return {
  now, call('HGET', K.paused, A.queue), ahead,
  fetch('HMGET', K.sess, call('ZRANGE', K.alive, 0, -1)), A.key and call('HGET', K.uniq, A.key) or '',
}
