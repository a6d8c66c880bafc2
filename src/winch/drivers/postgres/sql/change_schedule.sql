-- change_schedule: locks the schedule's row, so that the second change decides by what the first has
-- written; that is read in a later statement.
SELECT name
FROM {schema}.schedule
WHERE name = :name
FOR UPDATE;

-- change_schedule.live: how many of its jobs are not final.
SELECT count(*)
FROM {schema}.schedule_run
JOIN {schema}.job ON job.id = schedule_run.job
WHERE schedule_run.schedule = :name
    AND schedule_run.kind IN ('enqueued', 'triggered');

-- change_schedule.add: a new one; nothing when another process was first.
INSERT INTO {schema}.schedule (name, definition, is_code, created_at, last_window)
VALUES (:name, :definition, :is_code, :created_at, :last_window)
ON CONFLICT DO NOTHING
RETURNING name;

-- change_schedule.put: the row as it has become. Its own definition stays unless it is defined anew.
UPDATE {schema}.schedule
SET definition = coalesce(:definition, definition),
    last_window = :last_window,
    next_at = :next_at,
    timing = :timing,
    pending = :pending,
    paused_at = :paused_at,
    pause_reason = :pause_reason
WHERE name = :name;

-- change_schedule.remove: the row.
DELETE FROM {schema}.schedule
WHERE name = :name;

-- change_schedule.forget: its runs.
DELETE FROM {schema}.schedule_run
WHERE schedule = :name;

-- change_schedule.stored: which of these jobs are there, live or kept, in one look: a finish moves them.
SELECT id::text
FROM {schema}.job
WHERE id = ANY (:ids::uuid[])
UNION ALL
SELECT id::text
FROM {schema}.archive
WHERE id = ANY (:ids::uuid[]);

-- change_schedule.run: the rows of windows that have none, and of those that have one without a job where
-- there is one now; their jobs are stored after, in this transaction.
INSERT INTO {schema}.schedule_run (schedule, window_at, kind, at, job, note)
SELECT :name, run.window_at, run.kind, run.at, run.job, run.note
FROM json_to_recordset(:runs::json) AS run (
    window_at timestamptz, kind text, at timestamptz, job uuid, note text
)
ON CONFLICT (schedule, window_at) DO UPDATE
SET kind = excluded.kind,
    at = excluded.at,
    job = excluded.job,
    note = excluded.note
WHERE schedule_run.kind IN ('missed', 'skipped', 'held')
    AND excluded.kind = 'enqueued'
RETURNING window_at;

-- change_schedule.held: a job that was not stored, because its unique key was held.
UPDATE {schema}.schedule_run
SET kind = :kind,
    job = :job::uuid,
    note = :note
WHERE schedule = :name
    AND window_at = :window_at;

-- change_schedule.again: a trigger that was repeated has its row already.
DELETE FROM {schema}.schedule_run
WHERE schedule = :name
    AND window_at = :window_at;

-- change_schedule.trim: runs that are too old; never that of a job which is not final.
DELETE FROM {schema}.schedule_run
WHERE schedule = :name
    AND window_at < (
        SELECT window_at
        FROM {schema}.schedule_run
        WHERE schedule = :name
        ORDER BY window_at DESC
        OFFSET :keep - 1
        LIMIT 1
    )
    AND NOT EXISTS (SELECT FROM {schema}.job WHERE job.id = schedule_run.job);
