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

-- queues.capped: the same, with the ready jobs of each queue counted up to a cap, and at most so many jobs of the other
-- states looked at. Each queue is found by one look at an index. The oldest ready job is that of the first hundred in
-- line; of jobs with tenants, of each of the first thousand tenants or so.
WITH RECURSIVE plain AS (
    SELECT (
        SELECT queue FROM {schema}.job WHERE filed = 'ready' AND gate IS NULL ORDER BY queue LIMIT 1
    ) AS queue
    UNION ALL
    SELECT (
        SELECT job.queue
        FROM {schema}.job
        WHERE job.filed = 'ready' AND job.gate IS NULL AND job.queue > plain.queue
        ORDER BY job.queue
        LIMIT 1
    )
    FROM plain
    WHERE plain.queue IS NOT NULL
),
gated AS (
    SELECT (
        SELECT queue FROM {schema}.job WHERE filed = 'ready' AND gate IS NOT NULL AND tenant IS NULL ORDER BY queue LIMIT 1
    ) AS queue
    UNION ALL
    SELECT (
        SELECT job.queue
        FROM {schema}.job
        WHERE job.filed = 'ready' AND job.gate IS NOT NULL AND job.tenant IS NULL AND job.queue > gated.queue
        ORDER BY job.queue
        LIMIT 1
    )
    FROM gated
    WHERE gated.queue IS NOT NULL
),
tenanted AS (
    SELECT (
        SELECT queue FROM {schema}.job WHERE filed = 'ready' AND gate IS NOT NULL AND tenant IS NOT NULL ORDER BY queue LIMIT 1
    ) AS queue
    UNION ALL
    SELECT (
        SELECT job.queue
        FROM {schema}.job
        WHERE job.filed = 'ready' AND job.gate IS NOT NULL AND job.tenant IS NOT NULL AND job.queue > tenanted.queue
        ORDER BY job.queue
        LIMIT 1
    )
    FROM tenanted
    WHERE tenanted.queue IS NOT NULL
),
line AS (
    SELECT tenanted.queue, (
        SELECT job.tenant
        FROM {schema}.job
        WHERE job.filed = 'ready' AND job.gate IS NOT NULL AND job.tenant IS NOT NULL AND job.queue = tenanted.queue
        ORDER BY job.tenant
        LIMIT 1
    ) AS tenant
    FROM tenanted
    WHERE tenanted.queue IS NOT NULL
    UNION ALL
    SELECT line.queue, (
        SELECT job.tenant
        FROM {schema}.job
        WHERE job.filed = 'ready' AND job.gate IS NOT NULL AND job.queue = line.queue AND job.tenant > line.tenant
        ORDER BY job.tenant
        LIMIT 1
    )
    FROM line
    WHERE line.tenant IS NOT NULL
),
ready AS (
    SELECT plain.queue, counted.jobs, first.oldest
    FROM plain
    CROSS JOIN LATERAL (
        SELECT count(*) AS jobs
        FROM (
            SELECT
            FROM {schema}.job
            WHERE job.filed = 'ready' AND job.gate IS NULL AND job.state = 'ready' AND job.queue = plain.queue
            ORDER BY job.sort_key -- the planner would read the table
            LIMIT :cap
        ) AS part
    ) AS counted
    CROSS JOIN LATERAL (
        SELECT min(run_at) AS oldest
        FROM (
            SELECT job.run_at
            FROM {schema}.job
            WHERE job.filed = 'ready' AND job.gate IS NULL AND job.state = 'ready' AND job.queue = plain.queue
            ORDER BY job.sort_key
            LIMIT 100
        ) AS part
    ) AS first
    WHERE plain.queue IS NOT NULL
    UNION ALL
    SELECT gated.queue, counted.jobs, first.oldest
    FROM gated
    CROSS JOIN LATERAL (
        SELECT count(*) AS jobs
        FROM (
            SELECT
            FROM {schema}.job
            WHERE job.filed = 'ready' AND job.gate IS NOT NULL AND job.tenant IS NULL AND job.state = 'ready'
                AND job.queue = gated.queue
            ORDER BY job.sort_key
            LIMIT :cap
        ) AS part
    ) AS counted
    CROSS JOIN LATERAL (
        SELECT min(run_at) AS oldest
        FROM (
            SELECT job.run_at
            FROM {schema}.job
            WHERE job.filed = 'ready' AND job.gate IS NOT NULL AND job.tenant IS NULL AND job.state = 'ready'
                AND job.queue = gated.queue
            ORDER BY job.sort_key
            LIMIT 100
        ) AS part
    ) AS first
    WHERE gated.queue IS NOT NULL
    UNION ALL
    SELECT tenanted.queue, counted.jobs, NULL
    FROM tenanted
    CROSS JOIN LATERAL (
        SELECT count(*) AS jobs
        FROM (
            SELECT
            FROM {schema}.job
            WHERE job.filed = 'ready' AND job.gate IS NOT NULL AND job.tenant IS NOT NULL AND job.state = 'ready'
                AND job.queue = tenanted.queue
            ORDER BY job.tenant
            LIMIT :cap
        ) AS part
    ) AS counted
    WHERE tenanted.queue IS NOT NULL
    UNION ALL
    SELECT some_lines.queue, 0, first.oldest
    FROM (SELECT line.queue, line.tenant FROM line WHERE line.tenant IS NOT NULL LIMIT 1000) AS some_lines
    CROSS JOIN LATERAL (
        SELECT min(run_at) AS oldest
        FROM (
            SELECT job.run_at
            FROM {schema}.job
            WHERE job.filed = 'ready' AND job.gate IS NOT NULL AND job.tenant = some_lines.tenant
                AND job.queue = some_lines.queue AND job.state = 'ready'
            ORDER BY job.sort_key
            LIMIT 100
        ) AS part
    ) AS first
),
counted AS MATERIALIZED (
    SELECT queue, 'ready' AS state, sum(jobs)::bigint AS jobs, min(oldest) AS oldest
    FROM ready
    GROUP BY queue
    HAVING sum(jobs) > 0
    UNION ALL
    SELECT job.queue, 'running', count(*), NULL
    FROM (SELECT id FROM {schema}.claimed LIMIT :cap) AS claimed
    JOIN {schema}.job ON job.id = claimed.id
    GROUP BY job.queue
    UNION ALL
    SELECT blocked.queue, 'blocked', count(*), NULL
    FROM (SELECT queue FROM {schema}.job WHERE filed = 'blocked' ORDER BY gate LIMIT :cap) AS blocked
    GROUP BY blocked.queue
    UNION ALL
    SELECT due.queue, due.filed, count(*), NULL
    FROM (SELECT queue, filed FROM {schema}.job WHERE filed IN ('scheduled', 'retrying') ORDER BY run_at LIMIT :cap) AS due
    GROUP BY due.queue, due.filed
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
