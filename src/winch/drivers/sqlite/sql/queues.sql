-- queues: live jobs of each queue by state, and since when the oldest of the first hundred in line has been
-- ready. Ready jobs are counted over their indexes: there may be a million, and a scan would read them all.
SELECT
    queue, 'ready', jobs,
    (SELECT min(run_at) FROM (
        SELECT run_at
        FROM winch_job
        WHERE state = 'ready' AND gate IS NULL AND queue = counted.queue
        ORDER BY sort_key
        LIMIT 100
    ))
FROM (
    SELECT queue, count(*) AS jobs
    FROM winch_job INDEXED BY winch_job_ready
    WHERE state = 'ready' AND gate IS NULL
    GROUP BY queue
) AS counted
UNION ALL
SELECT
    queue, 'ready', jobs,
    (SELECT min(run_at) FROM (
        SELECT run_at
        FROM winch_job
        WHERE state = 'ready' AND gate IS NOT NULL AND queue = counted.queue AND tenant IS counted.tenant
        ORDER BY sort_key
        LIMIT 100
    ))
FROM (
    SELECT queue, tenant, count(*) AS jobs
    FROM winch_job INDEXED BY winch_job_gated
    WHERE state = 'ready' AND gate IS NOT NULL
    GROUP BY queue, tenant
) AS counted
UNION ALL
SELECT queue, 'running', count(*), NULL
FROM winch_job INDEXED BY winch_job_running
WHERE state = 'running'
GROUP BY queue
UNION ALL
SELECT queue, 'blocked', count(*), NULL
FROM winch_job INDEXED BY winch_job_blocked
WHERE state = 'blocked'
GROUP BY queue
UNION ALL
SELECT queue, state, count(*), NULL
FROM winch_job INDEXED BY winch_job_due
WHERE state = 'scheduled' OR state = 'retrying'
GROUP BY queue, state;

-- queues.paused: settings of queues.
SELECT name, paused_at, pause_reason
FROM winch_queue
WHERE paused_at IS NOT NULL;

-- queues.served: how many live sessions serve each queue.
SELECT served.value, count(*)
FROM winch_session, json_each(winch_session.queues) AS served
WHERE winch_session.ended_at IS NULL
GROUP BY served.value;
