-- Schedules: entries that enqueue jobs at windows of their own.

-- `timing` is the key of the timing that next_at was found by. Serves due_schedules by its index.
CREATE TABLE {schema}.schedule (
    name text PRIMARY KEY,
    definition text NOT NULL,
    is_code boolean NOT NULL,
    created_at timestamptz NOT NULL,
    last_window timestamptz NOT NULL,
    next_at timestamptz,
    timing text,
    pending timestamptz,
    paused_at timestamptz,
    pause_reason text
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 200,
    vacuum_truncate = off
);
CREATE INDEX schedule_next ON {schema}.schedule (next_at) WHERE paused_at IS NULL;
COMMENT ON INDEX {schema}.schedule_next IS 'serves due_schedules';
CREATE INDEX schedule_pending ON {schema}.schedule (name) WHERE pending IS NOT NULL;
COMMENT ON INDEX {schema}.schedule_pending IS 'serves due_schedules';

-- What became of a window. That a job is stored only together with its row is why a window has one job.
CREATE TABLE {schema}.schedule_run (
    schedule text NOT NULL,
    window_at timestamptz NOT NULL,
    kind text NOT NULL,
    at timestamptz NOT NULL,
    job uuid,
    note text,
    PRIMARY KEY (schedule, window_at)
);

-- The schedules that the code of a session defines; gone with the session.
CREATE TABLE {schema}.declaration (
    session uuid NOT NULL REFERENCES {schema}.session (id) ON DELETE CASCADE,
    schedule text NOT NULL,
    definition text NOT NULL,
    timing text NOT NULL,
    PRIMARY KEY (session, schedule)
);
CREATE INDEX declaration_of_schedule ON {schema}.declaration (schedule);
COMMENT ON INDEX {schema}.declaration_of_schedule IS 'serves schedules, due_schedules and change_schedule';

-- Schedules with the definition that is in effect: that of the live session which started last among those
-- that declare it, else their own.
CREATE VIEW {schema}.schedule_in_effect AS
SELECT
    schedule.name, coalesce(latest.definition, schedule.definition) AS definition, schedule.is_code,
    schedule.created_at, schedule.last_window, coalesce(latest.sessions, 0)::integer AS declared_by,
    schedule.next_at, schedule.timing, schedule.pending, schedule.paused_at, schedule.pause_reason,
    latest.timing AS declared_timing
FROM {schema}.schedule
LEFT JOIN LATERAL (
    SELECT declaration.definition, declaration.timing, count(*) OVER () AS sessions
    FROM {schema}.declaration
    JOIN {schema}.session ON session.id = declaration.session
    WHERE declaration.schedule = schedule.name
        AND session.ended_at IS NULL
    ORDER BY session.started_at DESC, session.id DESC
    LIMIT 1
) AS latest ON true;
