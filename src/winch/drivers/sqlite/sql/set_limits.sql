-- set_limits: sets a limit, rate or weight by name. What a person has set is not changed by code.
INSERT INTO winch_limit (name, spec, is_live, set_by, set_at)
VALUES (:limit, :spec, :is_live, :by, :now)
ON CONFLICT (name) DO UPDATE
SET spec = excluded.spec,
    is_live = excluded.is_live,
    set_by = excluded.set_by,
    set_at = excluded.set_at
WHERE excluded.is_live OR NOT winch_limit.is_live;

-- set_limits.remove: nothing is set by this name any more.
DELETE FROM winch_limit
WHERE name = :limit
    AND (:is_live OR NOT is_live);
