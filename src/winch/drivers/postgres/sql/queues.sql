-- queues: every queue that has live jobs, is paused, or is served by a live session.
WITH counted AS MATERIALIZED (
    SELECT queue, state, count(*) AS jobs, min(run_at) AS oldest
    FROM {schema}.job
    GROUP BY queue, state
),
served AS MATERIALIZED (
    SELECT served.queue, count(*) AS sessions
    FROM {schema}.session
    CROSS JOIN LATERAL unnest(session.queues) AS served (queue)
    WHERE session.ended_at IS NULL
    GROUP BY served.queue
),
paused AS MATERIALIZED (
    SELECT name, paused_at, pause_reason
    FROM {schema}.queue
    WHERE paused_at IS NOT NULL
)
SELECT
    named.queue,
    paused.paused_at,
    paused.pause_reason,
    (SELECT oldest FROM counted WHERE counted.queue = named.queue AND counted.state = 'ready'),
    coalesce(served.sessions, 0),
    (SELECT json_object_agg(state, jobs) FROM counted WHERE counted.queue = named.queue)::text
FROM (
    SELECT queue FROM counted
    UNION
    SELECT queue FROM served
    UNION
    SELECT name FROM paused
) AS named (queue)
LEFT JOIN served ON served.queue = named.queue
LEFT JOIN paused ON paused.name = named.queue;
