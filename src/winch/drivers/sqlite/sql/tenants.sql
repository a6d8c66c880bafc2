-- tenants: the ready jobs of each tenant in each queue, the longest line first, and since when the oldest of the first
-- hundred in line has been ready.
SELECT
    queue, tenant, jobs,
    (SELECT min(run_at) FROM (
        SELECT run_at
        FROM winch_job
        WHERE state = 'ready' AND gate IS NOT NULL AND queue = counted.queue AND tenant = counted.tenant
        ORDER BY sort_key
        LIMIT 100
    ))
FROM (
    SELECT queue, tenant, count(*) AS jobs
    FROM winch_job INDEXED BY winch_job_gated
    WHERE state = 'ready' AND gate IS NOT NULL AND tenant IS NOT NULL
    GROUP BY queue, tenant
    ORDER BY jobs DESC, queue, tenant
    LIMIT :limit
) AS counted
ORDER BY jobs DESC, queue, tenant;
