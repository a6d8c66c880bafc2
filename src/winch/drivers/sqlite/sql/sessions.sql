-- sessions: latest start first, with the number of jobs each runs.
SELECT
    id, worker, host, pid, release, queues, tasks, slots, started_at, lease_until, beats,
    (SELECT count(*) FROM winch_job WHERE state = 'running' AND winch_job.session = winch_session.id), ended_at, end_reason,
    supervisor, labels, queue_limits
FROM winch_session
WHERE ended_at IS NULL OR :is_ended_too
ORDER BY started_at DESC, id DESC;

-- sessions.one: the session of this id.
SELECT
    id, worker, host, pid, release, queues, tasks, slots, started_at, lease_until, beats,
    (SELECT count(*) FROM winch_job WHERE state = 'running' AND winch_job.session = winch_session.id), ended_at, end_reason,
    supervisor, labels, queue_limits
FROM winch_session
WHERE id = :session;
