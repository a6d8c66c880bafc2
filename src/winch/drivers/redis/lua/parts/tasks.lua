-- tasks: which jobs are of tasks that the worker knows. A.tasks: name -> true, or nil for any.
-- The name of the task stands at the start of the envelope, behind 9 bytes of created and 1 of array.
local function task_of(e)
  local head = string.byte(e, 11) or 0  -- damaged: a task that no worker knows
  if head < 192 then return string.sub(e, 12, 11 + head - 160) end
  if head == 217 then return string.sub(e, 13, 12 + string.byte(e, 12)) end
  local is_read, _, env = pcall(read, e)
  return is_read and type(env) == 'table' and env[1] or ''
end

-- Its options stand behind the task; nil where it has none, or where they are damaged.
local function options_of(e)
  local head, at = string.byte(e, 11), nil
  if not head then return nil end
  if head < 192 then at = head - 148 elseif head == 217 then at = 13 + (string.byte(e, 12) or 0) end
  local kind, a, b = string.byte(e, at or 0, (at or 0) + 2)
  if at and kind == 194 then return nil end  -- false
  if at and kind and kind >= 160 and kind < 192 then return string.sub(e, at + 1, at + kind - 160) end
  if at and kind == 217 and a then return string.sub(e, at + 2, at + 1 + a) end
  if at and kind == 218 and b then return string.sub(e, at + 3, at + 2 + 256 * a + b) end
  local is_read, _, env = pcall(read, e)
  return is_read and type(env) == 'table' and env[2] or nil
end

-- Only where the queue has had a task that this worker does not know is each job looked at.
local function is_mixed(queue)
  if not A.tasks then return false end
  for _, task in ipairs(call('SMEMBERS', K.tasks(queue))) do
    if not A.tasks[task] then return true end
  end
  return false
end
