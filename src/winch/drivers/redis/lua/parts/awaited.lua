-- awaited: whether other jobs still wait for a final job; see storage/decide/waits.py. Each job that was stored with
-- waits has its own entry in `ids`, and the members of one flow are neighbours there.
local still = {}

local function is_live(id)
  local s = call('HGET', K.st, id)
  if not s then return call('HEXISTS', K.env, id) == 1 end
  return not FINAL[read(s).s]
end

local function is_open(flow)
  local from = '[' .. string.sub(flow, 1, FLOW_ALIKE)
  local to = from .. '~'
  while true do
    local ids = call('ZRANGEBYLEX', K.ids, from, to, 'LIMIT', 0, 500)
    for _, id in ipairs(ids) do
      local e = is_live(id) and call('HGET', K.env, id)
      local _, env = read_envelope(e or '')
      local headers = env and env[HEADERS]
      if headers and string.find(headers, INPUTS, 1, true) and string.find(headers, flow, 1, true) then
        return true
      end
    end
    if #ids < 500 then return false end
    from = '(' .. ids[#ids]
  end
end

local function still_awaited(headers)
  local _, to = string.find(headers or '', AWAITED, 1, true)
  if not to then return false end
  local header = string.match(headers, '^"([^"]*)"', to + 1) or ''
  local _, at = string.find(headers, FLOW, 1, true)
  local flow = at and string.match(headers, '^"([^"]*)"', at + 1) or ''
  local key = K.st .. ' ' .. header .. ' ' .. flow
  if still[key] == nil then
    local together = string.match(header, '^all:[^+]*')
    local from = together and waiter(together, '')
    still[key] = is_live(header)
      or (from and #call('ZRANGEBYLEX', K.waiters, '[' .. from, '[' .. from .. ':', 'LIMIT', 0, 1) > 0)
      or (flow ~= '' and is_open(flow))
      or false
  end
  return still[key]
end
