-- users: jobs of a family of gates that are in this shard: those that are not final, dead ones that hold a turn, and
-- those that have left and not arrived.
-- A:      family, cursor, count
-- Return: {the next cursor, ids, queues}
-- Keys:   env, st, run, turn, leaving
-- flags:  no-writes
-- parts:  put record homes
local found = call('HSCAN', K.env, A.cursor, 'COUNT', A.count)
local ids, queues, seen = {}, {}, {}
local function is_user(j)
  local is_one, has_turn = false, false
  for _, use in ipairs(gates().uses(j.env[OPTIONS])) do
    is_one = is_one or family_of(use) == A.family
    has_turn = has_turn or (use.kind == 'fifo' and call('HGET', K.turn, use.key) == j.id)
  end
  return is_one and (has_turn or not FINAL[j.s])
end

for i = 1, #found[2], 2 do
  local _, env = read_envelope(found[2][i + 1])
  local j = env and is_gated(env) and load(found[2][i])
  if j and is_user(j) then
    ids[#ids + 1] = j.id
    if not seen[env[QUEUE]] then queues[#queues + 1] = env[QUEUE] end
    seen[env[QUEUE]] = true
  end
end
-- Those that have left and not arrived are on their way home.
local leaving = A.cursor == '0' and call('HGETALL', K.leaving) or {}
for i = 1, #leaving, 2 do
  local _, env = read_envelope(read(leaving[i + 1])[1])
  for _, use in ipairs(env and gates().uses(env[OPTIONS]) or {}) do
    if family_of(use) == A.family then ids[#ids + 1] = leaving[i] end
  end
end
return {found[1], ids, queues}
