-- pause: claims from this queue find nothing until resume.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
)
INSERT INTO {schema}.queue (name, paused_at, pause_reason)
SELECT :queue, now, :reason
FROM clock
ON CONFLICT (name) DO UPDATE
SET paused_at = excluded.paused_at,
    pause_reason = excluded.pause_reason;
