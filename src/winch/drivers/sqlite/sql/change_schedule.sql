-- change_schedule: the row as it has become. Its own definition stays unless it is defined anew.
-- Differs from PostgreSQL: there is one writer at a time, so nothing is locked first.
INSERT INTO winch_schedule (
    name, definition, is_code, created_at, last_window, next_at, timing, pending, paused_at, pause_reason
)
VALUES (
    :name, :definition, :is_code, :created_at, :last_window, :next_at, :timing, :pending, :paused_at, :pause_reason
)
ON CONFLICT (name) DO UPDATE
SET definition = CASE WHEN :is_defined THEN excluded.definition ELSE definition END,
    last_window = excluded.last_window,
    next_at = excluded.next_at,
    timing = excluded.timing,
    pending = excluded.pending,
    paused_at = excluded.paused_at,
    pause_reason = excluded.pause_reason;

-- change_schedule.live: how many of its jobs are not final.
SELECT count(*)
FROM winch_schedule_run
JOIN winch_job ON winch_job.id = winch_schedule_run.job
WHERE winch_schedule_run.schedule = :name
    AND winch_schedule_run.kind IN ('enqueued', 'triggered');

-- change_schedule.remove: the row.
DELETE FROM winch_schedule
WHERE name = :name;

-- change_schedule.forget: its runs.
DELETE FROM winch_schedule_run
WHERE schedule = :name;

-- change_schedule.stored: which of these jobs are there, live or kept.
SELECT id
FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids))
UNION ALL
SELECT id
FROM winch_archive
WHERE id IN (SELECT value FROM json_each(:ids));

-- change_schedule.taken: which of these windows have a row, and of which kind.
SELECT window_at, kind
FROM winch_schedule_run
WHERE schedule = :name
    AND window_at IN (SELECT value FROM json_each(:windows));

-- change_schedule.run: what became of a window; a row without a job gives way to one with a job.
INSERT INTO winch_schedule_run (schedule, window_at, kind, at, job, note)
VALUES (:schedule, :window_at, :kind, :at, :job, :note)
ON CONFLICT (schedule, window_at) DO UPDATE
SET kind = excluded.kind,
    at = excluded.at,
    job = excluded.job,
    note = excluded.note;

-- change_schedule.trim: runs that are too old; never that of a job which is not final.
DELETE FROM winch_schedule_run
WHERE schedule = :name
    AND window_at < (
        SELECT window_at
        FROM winch_schedule_run
        WHERE schedule = :name
        ORDER BY window_at DESC
        LIMIT 1 OFFSET :keep - 1
    )
    AND NOT EXISTS (SELECT 1 FROM winch_job WHERE winch_job.id = winch_schedule_run.job);
