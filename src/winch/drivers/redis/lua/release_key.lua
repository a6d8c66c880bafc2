-- release_key: the live job that holds a unique key goes on without it.
-- A:      now; key, by
-- Return: its id, or ''
-- Keys:   uniq, ukey, kept, kept_until, env, st, run
-- flags:
-- parts:  put record
call('HDEL', K.kept, A.key)
call('ZREM', K.kept_until, A.key)
local holder = call('HGET', K.uniq, A.key)
local j = holder and load(holder)
if not j then return '' end
free_key(j)
j.env[UNIQUE] = false
acted(j, 'key released', A.by, nil)
save_env(j)
save(j)
done()
return holder
