-- promote: scheduled | retrying -> ready, earliest first; the sort key is that of the run time already.
-- Locks: the job rows with SKIP LOCKED; any number may run at once.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
promoted AS (
    UPDATE {schema}.job
    SET state = 'ready',
        filed = 'ready'
    WHERE ctid = ANY (ARRAY(
        SELECT ctid
        FROM {schema}.job
        WHERE filed IN ('scheduled', 'retrying')
            AND run_at <= (SELECT now FROM clock)
        ORDER BY run_at, id
        LIMIT :limit
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING id, queue
)
SELECT
    clock.now,
    (SELECT count(*) FROM promoted),
    (
        SELECT run_at
        FROM {schema}.job
        WHERE filed IN ('scheduled', 'retrying')
            AND id NOT IN (SELECT id FROM promoted)
        ORDER BY run_at, id
        LIMIT 1
    ),
    (SELECT {schema}.ring(array_agg(DISTINCT queue), false) FROM promoted)
FROM clock;
