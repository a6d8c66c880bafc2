-- each: a script run for several parts of a store, which one node of a cluster has. Each run is a script of
-- its own: it touches the keys of one part, and what goes wrong in one keeps no other from its work.
-- ARGV[1]: {parts: {key `meta`, args or false for the common ones, number of further arguments, its number}, common, bell,
--          budget, name}; then the further arguments. `bell`: where waiters of this node leave their names.
--          `budget`: a limit for all runs together, for scripts that have a limit
-- Return:  the reply to each part, or its error; TRYAGAIN where this node does not have (all of) it now
local WORDS = ARGV
local call_args = cmsgpack.unpack(WORDS[1])
local bell = call_args.bell
if type(redis.pcall('EXISTS', string.sub(bell, 1, -5) .. 'nothing')) == 'table' then bell = nil end

-- Declared once for all runs; KEYS and ARGV change with each run.
local KEYS, ARGV
--ONCE--

local function run()
--EACH--
end

local function spent(reply)
  if type(reply) == 'number' then return reply end
  if reply.err then return 0 end
  if call_args.name == 'rescue' then return #reply / 4 end
  local claims = 0
  for place = 3, #reply, 4 do claims = claims + #reply[place] end
  return claims
end

local out, before, left = {}, 1, call_args.budget
for i, part in ipairs(call_args.parts) do
  local given = {part[2] or call_args.common}
  given[1].part = part[4]
  for place = 1, part[3] do given[1 + place] = WORDS[before + place] end
  before = before + part[3]
  if left then given[1].limit = left end
  KEYS, ARGV = {part[1], bell}, given
  local is_well, reply = pcall(run)
  if not is_well and type(reply) ~= 'table' then reply = {err = 'ERR ' .. tostring(reply)} end
  out[i] = reply == nil and false or reply
  if left then left = left - spent(reply) end
end
return out
