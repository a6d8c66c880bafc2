-- beat: extends the leases of live sessions. Locks: the session rows, without their keys, so that claims go
-- on; touches no job. One statement whatever the number of sessions and of running jobs.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
beaten AS (
    UPDATE {schema}.session
    SET lease_until = (SELECT now FROM clock) + make_interval(secs => lease_seconds),
        beats = beats + 1
    WHERE id = ANY (:sessions::uuid[])
        AND ended_at IS NULL
    RETURNING id, beats
)
SELECT clock.now, beaten.id::text, beaten.beats
FROM clock
LEFT JOIN beaten ON true;
