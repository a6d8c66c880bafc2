-- delete: jobs that are not running are removed for good.
-- A:      now; ids
-- Return: {state before or '', took, holder} for each
-- Keys:   as prune
-- flags:  allow-oom
-- parts:  put record remove operate
return operate('delete', function(j)
  event(j.id, 'deleted', nil, nil, nil, j.x, j.a)
  remove(j)
end)
