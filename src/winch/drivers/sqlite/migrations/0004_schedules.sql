-- Schedules: entries that enqueue jobs at windows of their own.

-- `timing` is the key of the timing that next_at was found by.
CREATE TABLE winch_schedule (
    name TEXT PRIMARY KEY NOT NULL,
    definition TEXT NOT NULL,
    is_code INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    last_window INTEGER NOT NULL,
    next_at INTEGER,
    timing TEXT,
    pending INTEGER,
    paused_at INTEGER,
    pause_reason TEXT
) STRICT;
-- Serves due_schedules.
CREATE INDEX winch_schedule_next ON winch_schedule (next_at) WHERE paused_at IS NULL;
-- Serves due_schedules.
CREATE INDEX winch_schedule_pending ON winch_schedule (name) WHERE pending IS NOT NULL;

-- What became of a window. That a job is stored only together with its row is why a window has one job.
CREATE TABLE winch_schedule_run (
    schedule TEXT NOT NULL,
    window_at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at INTEGER NOT NULL,
    job TEXT,
    note TEXT,
    PRIMARY KEY (schedule, window_at)
) STRICT;

-- The schedules that the code of a session defines; prune removes them after the session.
CREATE TABLE winch_declaration (
    session TEXT NOT NULL,
    schedule TEXT NOT NULL,
    definition TEXT NOT NULL,
    timing TEXT NOT NULL,
    PRIMARY KEY (session, schedule)
) STRICT;
-- Serves schedules, due_schedules and change_schedule.
CREATE INDEX winch_declaration_of_schedule ON winch_declaration (schedule);

-- Schedules that live sessions declare, the latest start first.
CREATE VIEW winch_declared AS
SELECT
    winch_declaration.schedule, winch_declaration.definition, winch_declaration.timing,
    count(*) OVER (PARTITION BY winch_declaration.schedule) AS sessions,
    row_number() OVER (
        PARTITION BY winch_declaration.schedule
        ORDER BY winch_session.started_at DESC, winch_session.id DESC
    ) AS place
FROM winch_declaration
JOIN winch_session ON winch_session.id = winch_declaration.session
WHERE winch_session.ended_at IS NULL;

-- Schedules with the definition that is in effect: that of the live session which started last among those
-- that declare it, else their own.
CREATE VIEW winch_schedule_in_effect AS
SELECT
    winch_schedule.name, coalesce(latest.definition, winch_schedule.definition) AS definition,
    winch_schedule.is_code, winch_schedule.created_at, winch_schedule.last_window,
    coalesce(latest.sessions, 0) AS declared_by, winch_schedule.next_at, winch_schedule.timing,
    winch_schedule.pending, winch_schedule.paused_at, winch_schedule.pause_reason,
    latest.timing AS declared_timing
FROM winch_schedule
LEFT JOIN winch_declared AS latest ON latest.schedule = winch_schedule.name
    AND latest.place = 1;
