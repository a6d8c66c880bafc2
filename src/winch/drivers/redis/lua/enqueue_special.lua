-- enqueue_special: -> ready | scheduled, for jobs of any kind. All of the call or nothing.
-- A:      now; confirm; names: queue -> tasks; is_repeat; jobs: see parts/store.lua. ARGV[2…]: their
--         envelopes, in order
-- Return: msgpack: {twice = id} and nothing is stored; or {answers}: {is_new, holder, is_replaced} each
-- Keys:   env, ids, st, ready, scheduled, queues, tasks, keep, uniq, ukey, waiting, bell, events
-- flags:
-- parts:  put record store
-- A repeat writes nothing else, and WAIT waits for what its own connection wrote.
if A.confirm then call('HSET', K.meta, 'confirmed_at', string.format('%d', now)) end

local answers, twice = store(with_envelopes(A.jobs), A.names, A.is_repeat)
if twice then return pack({twice = twice}) end
done()
return pack({answers = answers})
