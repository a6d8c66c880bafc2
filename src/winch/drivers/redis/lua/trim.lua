-- trim: dead jobs that are too many are deleted, where they are still dead by that very death.
-- A:      ids, died: the moments of death
-- Return: how many went
-- Keys:   as prune
-- flags:  allow-oom
-- parts:  put record remove awaited
local gone = 0
for i, id in ipairs(A.ids) do
  local j = load(id)
  if j and j.s == 'dead' and j.f == A.died[i] and not still_awaited(j.env[HEADERS]) then
    remove(j)
    gone = gone + 1
  end
end
done()
return gone
