-- claim: ready -> running, for plain jobs; admit.take is for those with gates.
-- Locks: the session FOR KEY SHARE (rescue and end_session conflict, a beat does not), then jobs in order with
-- SKIP LOCKED. A session that is ended or unknown gets nothing; that and the queue's pause are looked at
-- once for each queue, not for each job. The queues are walked in the order given, and no more is locked
-- than is returned. By ctid: a join would hash the whole table.
-- Where a queue's walk begins: low_water.py.
-- RETURNING has no order: the caller sorts by queue, sort_key and id. It knows the queue where it named one.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
live AS MATERIALIZED (
    SELECT id
    FROM {schema}.session
    WHERE id = :session::uuid
        AND ended_at IS NULL
    FOR KEY SHARE
)
UPDATE {schema}.job
SET state = 'running',
    attempt = attempt + 1,
    fence = greatest(fence + 1, (SELECT {schema}.micros(now) FROM clock)),
    token = :token::uuid,
    session = :session::uuid,
    claimed_at = (SELECT now FROM clock),
    progress = NULL,
    log = NULL
WHERE ctid = ANY (ARRAY(
    SELECT ready.ctid
    FROM unnest(:queues::text[], :starts::bigint[]) AS wanted (queue, start)
    CROSS JOIN LATERAL (
        SELECT job.ctid
        FROM {schema}.job
        WHERE job.queue = wanted.queue
            AND job.sort_key >= wanted.start
            AND job.state = 'ready'
            AND job.gate IS NULL
            AND (:tasks::text[] IS NULL OR job.task = ANY (:tasks::text[]))
            AND (SELECT paused_at FROM {schema}.queue WHERE queue.name = wanted.queue) IS NULL
            AND EXISTS (SELECT FROM live)
        ORDER BY job.queue, job.sort_key, job.id
        LIMIT :limit
        FOR UPDATE SKIP LOCKED
    ) AS ready
    LIMIT :limit
))
RETURNING
    sort_key, id::text, CASE WHEN cardinality(:queues::text[]) > 1 THEN queue END, task, args, attempt, fence,
    created_at, run_at, claimed_at, version, is_suspect, expires_at, headers, options, checkpoint;
