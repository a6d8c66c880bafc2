-- death_counts: how many jobs of each of these groups died in each step of time.
-- A:      fingerprints, since, step, count
-- Return: for each fingerprint: the number for each step
-- Keys:   alike_at
-- flags:  no-writes
-- parts:
local out = {}
for i, fingerprint in ipairs(A.fingerprints) do
  local key, row = K.alike_at(fingerprint), {}
  for n = 1, A.count do
    local from = A.since + (n - 1) * A.step
    row[n] = call('ZCOUNT', key, string.format('%d', from), string.format('(%d', from + A.step))
  end
  out[i] = row
end
return out
