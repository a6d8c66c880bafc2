-- The live claims of a session by the index of leases, and without the leases of which nothing runs any more:
-- these wait for the next sweep, and every end of a worker went through all that it had claimed since.
CREATE OR REPLACE VIEW {schema}.claimed AS
SELECT job.id, job.token, job.session
FROM {schema}.job
WHERE job.filed = 'running'
UNION ALL
SELECT job.id, job.token, lease.session
FROM {schema}.lease
CROSS JOIN LATERAL unnest(lease.ids) AS member (id)
CROSS JOIN LATERAL (
    SELECT job.id, job.token
    FROM {schema}.job
    WHERE job.id = member.id
        AND job.token = lease.token
        AND job.filed = 'ready'
    OFFSET 0 -- by its id, whatever the planner believes
) AS job
WHERE lease.unended > 0;
