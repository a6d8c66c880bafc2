-- move_in: jobs of another store, as they were there. Each parcel once.
-- A:      now; move, number, ids. ARGV[2…]: in turn the envelope and the state of each
-- Return: 1; 0 where this parcel or a later one has come before
-- Keys:   parcels, env, st, ids, keep, uniq, ukey, queues, tasks, members; as enqueue_special
-- flags:
-- parts:  put record
local field = 'in:' .. A.move
if A.number <= tonumber(call('HGET', K.parcels, field) or '-1') then return 0 end
for place, id in ipairs(A.ids) do
  if call('HEXISTS', K.env, id) == 0 then
    local j = open(id, ARGV[2 * place], ARGV[2 * place + 1], nil)
    local key = j.env[UNIQUE]
    if key and not FINAL[j.s] then
      if call('HEXISTS', K.uniq, key) == 1 then
        j.env[UNIQUE] = false
      else
        call('HSET', K.uniq, key, id)
        call('HSET', K.ukey, id, key)
      end
    end
    if j.env[KEPT] then call('HSET', K.keep, id, string.format('%d', j.env[KEPT])) end
    save_env(j)
    call('ZADD', K.ids, 0, id)
    local queue = j.env[QUEUE]
    if call('SADD', K.tasks(queue), j.env[1]) > 0 then call('SADD', K.queues, queue) end
    if not FINAL[j.s] then awaits_again(j) end
    if is_gated(j.env) and not FINAL[j.s] then j.N = join(id, j.env, j.N) end
    stay(j)
    save(j)
    event(id, 'enqueued', j.s, nil, nil, nil, j.a)
  end
end
call('HSET', K.parcels, field, A.number)
done()
return 1
