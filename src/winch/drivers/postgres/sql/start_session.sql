-- start_session: inserts the session with a fresh lease; repeating it changes nothing.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
started AS (
    INSERT INTO {schema}.session (
        id, worker, host, pid, release, queues, tasks, slots, lease_seconds, started_at, lease_until,
        supervisor, labels, queue_limits
    )
    SELECT
        :id::uuid, :worker, :host, :pid, :release, :queues::text[], :tasks::text[], :slots,
        :lease_seconds::double precision, clock.now,
        clock.now + make_interval(secs => :lease_seconds::double precision), :supervisor, :labels,
        :queue_limits
    FROM clock
    ON CONFLICT DO NOTHING
)
SELECT now
FROM clock;

-- start_session.declare: the schedules that the session's code defines; new ones begin now.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
wanted AS MATERIALIZED (
    SELECT name, definition, timing
    FROM json_to_recordset(:schedules::json) AS wanted (name text, definition text, timing text)
),
declared AS (
    INSERT INTO {schema}.declaration (session, schedule, definition, timing)
    SELECT :id::uuid, name, definition, timing
    FROM wanted
    ON CONFLICT DO NOTHING
)
INSERT INTO {schema}.schedule (name, definition, is_code, created_at, last_window)
SELECT wanted.name, wanted.definition, true, clock.now, clock.now
FROM wanted, clock
ORDER BY wanted.name COLLATE "C"
ON CONFLICT (name) DO UPDATE
SET definition = excluded.definition
WHERE schedule.is_code
    AND schedule.definition <> excluded.definition;
