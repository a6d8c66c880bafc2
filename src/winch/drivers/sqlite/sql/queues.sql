-- queues: live jobs of each queue by state, and since when the oldest of the first hundred in line has been
-- ready. Each queue is found by one look at an index, and its ready jobs are counted over that index, up to a cap
-- (-1: all of them). Of the other states together at most so many are looked at.
WITH RECURSIVE
plain (queue) AS (
    SELECT (
        SELECT queue FROM winch_job INDEXED BY winch_job_ready WHERE state = 'ready' AND gate IS NULL ORDER BY queue LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT winch_job.queue
        FROM winch_job INDEXED BY winch_job_ready
        WHERE state = 'ready' AND gate IS NULL AND winch_job.queue > plain.queue
        ORDER BY winch_job.queue
        LIMIT 1
    )
    FROM plain
    WHERE plain.queue IS NOT NULL
),
gated (queue) AS (
    SELECT (
        SELECT queue FROM winch_job INDEXED BY winch_job_gated WHERE state = 'ready' AND gate IS NOT NULL ORDER BY queue LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT winch_job.queue
        FROM winch_job INDEXED BY winch_job_gated
        WHERE state = 'ready' AND gate IS NOT NULL AND winch_job.queue > gated.queue
        ORDER BY winch_job.queue
        LIMIT 1
    )
    FROM gated
    WHERE gated.queue IS NOT NULL
),
-- The tenants of each queue; of very many the first thousand or so.
line (queue, tenant) AS (
    SELECT gated.queue, (
        SELECT winch_job.tenant
        FROM winch_job INDEXED BY winch_job_gated
        WHERE state = 'ready' AND gate IS NOT NULL AND winch_job.queue = gated.queue AND tenant IS NOT NULL
        ORDER BY winch_job.tenant
        LIMIT 1
    )
    FROM gated
    WHERE gated.queue IS NOT NULL
    UNION ALL
    SELECT line.queue, (
        SELECT winch_job.tenant
        FROM winch_job INDEXED BY winch_job_gated
        WHERE state = 'ready' AND gate IS NOT NULL AND winch_job.queue = line.queue AND winch_job.tenant > line.tenant
        ORDER BY winch_job.tenant
        LIMIT 1
    )
    FROM line
    WHERE line.tenant IS NOT NULL
    LIMIT 2000
)
SELECT
    queue, 'ready',
    (SELECT count(*) FROM (
        SELECT 1
        FROM winch_job INDEXED BY winch_job_ready
        WHERE state = 'ready' AND gate IS NULL AND winch_job.queue = plain.queue
        LIMIT :cap
    )),
    (SELECT min(run_at) FROM (
        SELECT run_at
        FROM winch_job
        WHERE state = 'ready' AND gate IS NULL AND winch_job.queue = plain.queue
        ORDER BY sort_key
        LIMIT 100
    ))
FROM plain
WHERE queue IS NOT NULL
UNION ALL
SELECT
    queue, 'ready',
    (SELECT count(*) FROM (
        SELECT 1
        FROM winch_job INDEXED BY winch_job_gated
        WHERE state = 'ready' AND gate IS NOT NULL AND winch_job.queue = gated.queue
        LIMIT :cap
    )),
    (SELECT min(run_at) FROM (
        SELECT run_at
        FROM winch_job
        WHERE state = 'ready' AND gate IS NOT NULL AND winch_job.queue = gated.queue AND tenant IS NULL
        ORDER BY sort_key
        LIMIT 100
    ))
FROM gated
WHERE queue IS NOT NULL
UNION ALL
SELECT
    queue, 'ready', 0,
    (SELECT min(run_at) FROM (
        SELECT run_at
        FROM winch_job
        WHERE state = 'ready' AND gate IS NOT NULL AND winch_job.queue = line.queue AND tenant = line.tenant
        ORDER BY sort_key
        LIMIT 100
    ))
FROM line
WHERE tenant IS NOT NULL
UNION ALL
SELECT queue, 'running', count(*), NULL
FROM (SELECT queue FROM winch_job INDEXED BY winch_job_running WHERE state = 'running' LIMIT :cap)
GROUP BY queue
UNION ALL
SELECT queue, 'blocked', count(*), NULL
FROM (SELECT queue FROM winch_job INDEXED BY winch_job_blocked WHERE state = 'blocked' LIMIT :cap)
GROUP BY queue
UNION ALL
SELECT queue, state, count(*), NULL
FROM (
    SELECT queue, state FROM winch_job INDEXED BY winch_job_due WHERE state = 'scheduled' OR state = 'retrying' LIMIT :cap
)
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
