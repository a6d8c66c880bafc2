-- sessions: the sessions, latest start first.
SELECT
    id::text, worker, host, pid, release, queues, tasks, slots, started_at, lease_until, beats,
    coalesce(claims.number, 0),
    ended_at, end_reason, supervisor, labels, queue_limits
FROM {schema}.session
LEFT JOIN (
    SELECT session, count(*) AS number
    FROM {schema}.claimed
    GROUP BY session
) AS claims ON claims.session = session.id
WHERE :is_ended_too::boolean
    OR ended_at IS NULL
ORDER BY started_at DESC, session.id DESC;
