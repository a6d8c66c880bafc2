-- waited_at: whether jobs wait at gates of this part, or what gates remember may be forgotten: there is something to admit.
-- A:      –
-- Return: 1 or 0
-- Keys:   closed, opens, rests, caps
-- flags:  no-writes
-- parts:
return call('EXISTS', K.closed, K.opens, K.rests, K.caps) > 0 and 1 or 0
