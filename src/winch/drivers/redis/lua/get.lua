-- get: jobs as they are, live or kept.
-- A:      ids
-- Return: {envelopes, states, claims}
-- Keys:   env, st, run
-- flags:  no-writes
-- parts:
return {fetch('HMGET', K.env, A.ids), fetch('HMGET', K.st, A.ids), fetch('HMGET', K.run, A.ids)}
