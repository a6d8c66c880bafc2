-- operate: an operator's verb over many jobs, in their order. Answers {state before or '', took, holder}.
local function operate(verb, act, holder_of)
  local out = {}
  for i, id in ipairs(A.ids) do
    local j = load(id)
    if not j then
      out[i] = {'', 0, ''}
    else
      local state = j.s
      local holder = holder_of and holder_of(j) or nil
      local took = MAY[verb][state] and not holder and not (verb == 'retry' and j.is_damaged)
      if took then act(j) end
      out[i] = {state, took and 1 or 0, holder or ''}
    end
  end
  done()
  return out
end
