-- sessions: the sessions, latest start first.
SELECT
    id::text, worker, host, pid, release, queues, tasks, slots, started_at, lease_until, beats,
    (
        SELECT count(*)
        FROM {schema}.job
        WHERE job.state = 'running'
            AND job.session = session.id
    ),
    ended_at, end_reason
FROM {schema}.session
WHERE :is_ended_too::boolean
    OR ended_at IS NULL
ORDER BY started_at DESC, session.id DESC;
