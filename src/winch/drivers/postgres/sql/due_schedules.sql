-- due_schedules: active ones that want a tick. A definition that has come or gone with a session is looked
-- for among the declared ones, which are few; the others by the moment of their next window.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
wanted AS MATERIALIZED (
    SELECT name
    FROM {schema}.schedule
    WHERE paused_at IS NULL
        AND (next_at IS NULL OR next_at <= (SELECT now FROM clock))
    UNION
    SELECT name
    FROM {schema}.schedule
    WHERE pending IS NOT NULL
    UNION
    SELECT schedule
    FROM {schema}.declaration
)
SELECT
    name, definition, is_code, created_at, last_window, declared_by, next_at, timing, pending, paused_at,
    pause_reason
FROM {schema}.schedule_in_effect
WHERE name IN (SELECT wanted.name FROM wanted)
    AND paused_at IS NULL
    AND (NOT is_code OR declared_by > 0)
    AND (
        next_at IS NULL
        OR next_at <= (SELECT now FROM clock)
        OR pending IS NOT NULL
        OR (declared_by > 0 AND declared_timing IS DISTINCT FROM timing)
    )
ORDER BY name COLLATE "C"
LIMIT :limit;

-- due_schedules.next: the store's time, and when the next one is due.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
)
SELECT now, (SELECT min(next_at) FROM {schema}.schedule WHERE paused_at IS NULL AND next_at > clock.now)
FROM clock;
