-- has_gated: whether one of these queues has a ready job with gates or a tenant, or a rule.
-- A:      queues
-- Return: 1 or 0
-- Keys:   gated, tenanted, caps, strict
-- flags:  no-writes
-- parts:
for _, queue in ipairs(A.queues) do
  if call('EXISTS', K.gated(queue), K.tenanted(queue)) > 0 then return 1 end
  if call('HEXISTS', K.caps, queue) == 1 or call('SISMEMBER', K.strict, queue) == 1 then return 1 end
end
return 0
