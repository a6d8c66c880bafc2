-- start_session: inserts the session with a fresh lease; repeating it changes nothing.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
started AS (
    INSERT INTO {schema}.session (
        id, worker, host, pid, release, queues, tasks, slots, lease_seconds, started_at, lease_until
    )
    SELECT
        :id::uuid, :worker, :host, :pid, :release, :queues::text[], :tasks::text[], :slots,
        :lease_seconds::double precision, clock.now,
        clock.now + make_interval(secs => :lease_seconds::double precision)
    FROM clock
    ON CONFLICT DO NOTHING
)
SELECT now
FROM clock;
