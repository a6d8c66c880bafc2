-- homes: where a keyed gate lives in a cluster: in the shard of its key, or at home; see docs/adr/0017. The gates of one
-- name whose keys belong to one shard are a family. In a shard, `shut` has the families that have gone home; at home it
-- has those that are on their way. A part admits no job of a family that is shut there.
local function family_of(use)
  local name, value
  if use.kind == 'fifo' then
    if string.sub(use.key, 1, 12) == 'fifo:unique:' then return nil end  -- its jobs have a unique key too
    name, value = 'fifo', string.sub(use.key, 6)
  elseif (use.kind == 'limit' or use.kind == 'rate') and use.name ~= '' and #use.key > #use.name then
    name, value = use.name, string.sub(use.key, #use.name + 2)
  else
    return nil
  end
  return name .. '@' .. 1 + tonumber(string.sub(redis.sha1hex(value), 1, 2), 16) % 64
end

local function shut_of(uses)
  if not A.in_cluster or call('EXISTS', K.shut) == 0 then return nil end
  for _, use in ipairs(uses) do
    local family = family_of(use)
    if family and call('SISMEMBER', K.shut, family) == 1 then return family end
  end
end
