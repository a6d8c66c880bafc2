-- schedules: all of them, or the one of a name, with the definition that is in effect.
SELECT
    name, definition, is_code, created_at, last_window, declared_by, next_at, timing, pending, paused_at,
    pause_reason
FROM winch_schedule_in_effect
WHERE :name IS NULL OR name = :name
ORDER BY name;
