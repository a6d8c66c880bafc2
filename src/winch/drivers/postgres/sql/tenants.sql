-- tenants: the ready jobs of each tenant in each queue, the longest line first, and since when the oldest of the first
-- hundred in line has been ready. By code point, as other stores order texts.
SELECT counted.queue, counted.tenant, counted.jobs, first.run_at
FROM (
    SELECT queue, tenant, count(*) AS jobs
    FROM {schema}.job
    WHERE filed = 'ready' AND gate IS NOT NULL AND tenant IS NOT NULL AND state = 'ready'
    GROUP BY queue, tenant
    ORDER BY jobs DESC, queue COLLATE "C", tenant COLLATE "C"
    LIMIT :limit
) AS counted
CROSS JOIN LATERAL (
    SELECT min(line.run_at) AS run_at
    FROM (
        SELECT job.run_at
        FROM {schema}.job
        WHERE job.filed = 'ready' AND job.gate IS NOT NULL AND job.tenant = counted.tenant AND job.queue = counted.queue
            AND job.state = 'ready'
        ORDER BY job.sort_key
        LIMIT 100
    ) AS line
) AS first
ORDER BY counted.jobs DESC, counted.queue COLLATE "C", counted.tenant COLLATE "C";
