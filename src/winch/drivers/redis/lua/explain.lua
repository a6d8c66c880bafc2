-- explain: what else there is to say about one job.
-- A:      now; id, queue
-- Return: {now, paused, ready jobs before it or -1, what live sessions said}
-- Keys:   paused, ready, alive, sess
-- flags:  no-writes
-- parts:
return {
  now, call('HGET', K.paused, A.queue), call('ZRANK', K.ready(A.queue), A.id) or -1,
  fetch('HMGET', K.sess, call('ZRANGE', K.alive, 0, -1)),
}
