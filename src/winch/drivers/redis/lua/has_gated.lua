-- has_gated: whether one of these queues has a ready job with gates or a tenant.
-- A:      queues
-- Return: 1 or 0
-- Keys:   gated, tenanted
-- flags:  no-writes
-- parts:
for _, queue in ipairs(A.queues) do
  if call('EXISTS', K.gated(queue), K.tenanted(queue)) > 0 then return 1 end
end
return 0
