-- schedule_runs: what became of the latest windows, newest first.
SELECT schedule, window_at, kind, at, job, note
FROM winch_schedule_run
WHERE schedule = :name
ORDER BY window_at DESC
LIMIT :limit;
