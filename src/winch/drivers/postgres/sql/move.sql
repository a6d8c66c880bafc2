-- move: waiting jobs stand in another queue from now on; everything else stays. Locks: the job rows, by id.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
held AS MATERIALIZED (
    SELECT id, state
    FROM {schema}.job
    WHERE id = ANY (:ids::uuid[])
        AND state <> 'running'
    ORDER BY id
    FOR UPDATE
),
moved AS (
    UPDATE {schema}.job
    SET queue = :queue,
        history = {schema}.grown(
            job.history,
            {schema}.note('moved', clock.now, :by::text, 'from ' || job.queue || ' to ' || :queue)
        )
    FROM held, clock
    WHERE job.id = held.id
        AND held.state <> 'running'
        AND job.queue <> :queue
    RETURNING job.id
)
SELECT held.id::text, held.state, (
    SELECT {schema}.ring(ARRAY[:queue::text], true) FROM (SELECT count(*) FROM moved) AS done (count) WHERE done.count > 0
)
FROM held
WHERE held.state <> 'running';
