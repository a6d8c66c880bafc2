-- pause: nothing of this queue is claimed until it is resumed.
-- A:      now; queue, reason
-- Return: 1
-- Keys:   paused
-- flags:
-- parts:
call('HSET', K.paused, A.queue, pack({at = now, reason = A.reason}))
return 1
