-- set_limits: sets limits, rates and weights by name. What a person has set is not changed by code.
INSERT INTO {schema}.limit_set (name, spec, is_live, set_by, set_at)
SELECT wanted.name, wanted.spec, :is_live, :by, coalesce(:now::timestamptz, clock_timestamp())
FROM unnest(:names::text[], :specs::text[]) AS wanted (name, spec)
WHERE wanted.spec IS NOT NULL
ORDER BY wanted.name COLLATE "C"
ON CONFLICT (name) DO UPDATE
SET spec = excluded.spec,
    is_live = excluded.is_live,
    set_by = excluded.set_by,
    set_at = excluded.set_at
WHERE excluded.is_live OR NOT limit_set.is_live;

-- set_limits.remove: nothing is set by these names any more.
DELETE FROM {schema}.limit_set
WHERE name = ANY (:names::text[])
    AND (:is_live OR NOT is_live);
