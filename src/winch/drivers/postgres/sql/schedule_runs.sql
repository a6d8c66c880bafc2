-- schedule_runs: what became of the latest windows, newest first.
SELECT schedule, window_at, kind, at, job::text, note
FROM {schema}.schedule_run
WHERE schedule = :name
ORDER BY window_at DESC
LIMIT :limit;
