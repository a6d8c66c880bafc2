-- whereabouts: what a shard knows of jobs that are not in it.
-- A:      ids
-- Return: for each: 'leaving' | 'away' | ''
-- Keys:   leaving, away
-- flags:  no-writes
-- parts:
local out = {}
for i, id in ipairs(A.ids) do
  out[i] = call('HEXISTS', K.leaving, id) == 1 and 'leaving' or call('ZSCORE', K.away, id) and 'away' or ''
end
return out
