-- resume: claims continue; all workers that wait for the queue are woken.
-- A:      queue
-- Return: 1
-- Keys:   paused, waiting, bell
-- flags:  allow-oom
-- parts:  put
call('HDEL', K.paused, A.queue)
rings[A.queue] = 1000000
done()
return 1
