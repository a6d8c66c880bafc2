-- base: how a script is called, and commands with many arguments.
-- KEYS[1] is the key `meta`; the others begin like it. ARGV[1] is a msgpack map, A below.
local call, pack, read = redis.call, cmsgpack.pack, cmsgpack.unpack
local A = type(ARGV[1]) == 'table' and ARGV[1] or read(ARGV[1])

-- While a slot moves, some of its keys are here and some are not, and a script that meets one that is not
-- ends half done. A key that never exists tells before anything is written: the node that gives the slot
-- away will not answer for a key that it does not have.
if A.in_cluster and type(redis.pcall('EXISTS', K.nothing)) == 'table' then
  return redis.error_reply('TRYAGAIN the slot is moving to another node')
end

local function clock()
  local t = call('TIME')
  return t[1] * 1000000 + t[2]
end

local now = A.now or clock()

-- Redis keeps a hash of up to 512 short texts as a list and searches it from its beginning. One value of more than 64
-- characters makes it a table.
local WIDES = {}
local function wide(number)
  local text = WIDES[number] or string.format('%65d', number)
  WIDES[number] = text
  return text
end

-- Lua's stack holds some thousands of arguments.
local STEP = 4000

local function write(command, key, list)
  for i = 1, #list, STEP do
    call(command, key, unpack(list, i, math.min(i + STEP - 1, #list)))
  end
end

local function fetch(command, key, list)
  if #list == 0 then return {} end
  if #list <= STEP then return call(command, key, unpack(list)) end
  local found = {}
  for i = 1, #list, STEP do
    for _, value in ipairs(call(command, key, unpack(list, i, math.min(i + STEP - 1, #list)))) do
      found[#found + 1] = value
    end
  end
  return found
end
