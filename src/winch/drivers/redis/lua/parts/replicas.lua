-- replicas: a job whose id Winch draws is stored only where enough replicas are there to confirm it. Nothing is
-- written otherwise, so that the job can be stored elsewhere.
-- A.replicas: how many; nil: as many as there are
-- A replica confirms once a second; one that has not for so many seconds hangs.
local MOST_LAG = 5

local function replicas()
  local found, text = 0, redis.pcall('INFO', 'replication')
  if type(text) ~= 'string' then return A.replicas end  -- the user may not ask; WAIT will tell
  for lag in string.gmatch(text, 'state=online,offset=%d+,lag=(%d+)') do
    if tonumber(lag) <= MOST_LAG then found = found + 1 end
  end
  return found
end

if A.replicas and replicas() < A.replicas then
  return redis.error_reply('NOREPLICAS the node has too few replicas that are in step')
end
