-- due_schedules: active ones that want a tick. A definition that has come or gone with a session is looked
-- for among the declared ones, which are few; the others by the moment of their next window.
SELECT
    name, definition, is_code, created_at, last_window, declared_by, next_at, timing, pending, paused_at,
    pause_reason
FROM winch_schedule_in_effect
WHERE name IN (
    SELECT name FROM winch_schedule WHERE paused_at IS NULL AND next_at IS NULL
    UNION
    SELECT name FROM winch_schedule WHERE paused_at IS NULL AND next_at <= :now
    UNION
    SELECT name FROM winch_schedule WHERE pending IS NOT NULL
    UNION
    SELECT schedule FROM winch_declaration
)
    AND paused_at IS NULL
    AND (NOT is_code OR declared_by > 0)
    AND (
        next_at IS NULL
        OR next_at <= :now
        OR pending IS NOT NULL
        OR (declared_by > 0 AND declared_timing IS NOT timing)
    )
ORDER BY name
LIMIT :limit;

-- due_schedules.next: when the next one is due.
SELECT min(next_at)
FROM winch_schedule
WHERE paused_at IS NULL
    AND next_at > :now;
