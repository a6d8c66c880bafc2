-- beat: the leases of live sessions anew. Touches no job. Commands to a session are lines whose keys begin with its id
-- and '/'; '0' is the character after that.
-- A:      now; sessions; book, most
-- Return: {now, then for each: its beats, or -1 when it is not live; or {beats, key, body, …} where it has commands}
-- Keys:   alive, sess, beats, lines, bodies
-- flags:  allow-oom
-- parts:
local out = {now}
local has_commands = call('EXISTS', K.lines(A.book)) == 1
for _, session in ipairs(A.sessions) do
  if call('ZSCORE', K.alive, session) then
    local _, lease = read(call('HGET', K.sess, session))
    call('ZADD', K.alive, string.format('%d', now + lease), session)
    local beats = call('HINCRBY', K.beats, session, 1)
    if has_commands then
      beats = {beats}
      for _, key in ipairs(call('ZRANGEBYLEX', K.lines(A.book), '(' .. session .. '/', '(' .. session .. '0')) do
        local line = read(call('HGET', K.bodies(A.book), key))
        if (not line[2] or line[2] > now) and #beats < 2 * A.most then
          beats[#beats + 1], beats[#beats + 2] = key, line[1]
        end
      end
    end
    out[#out + 1] = beats
  else
    out[#out + 1] = -1
  end
end
return out
