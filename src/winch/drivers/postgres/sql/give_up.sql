-- give_up: running -> ready at the old place | cancelled where that was requested, for claims whose answer
-- was lost. Locks: the job rows, by id. The tokens are not remembered: no caller received these claims.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
named AS MATERIALIZED (
    -- In lists: of those the planner expects few, and looks the jobs up by their ids.
    SELECT array_agg(id ORDER BY id) AS ids, array_agg(token ORDER BY id) AS tokens
    FROM {schema}.claimed
    WHERE session = :session::uuid
        AND token = ANY (:tokens::uuid[])
),
held AS MATERIALIZED (
    SELECT job.id, job.cancel_requested_at IS NOT NULL AND job.has_undo IS NOT TRUE AS is_cancelled
    FROM named
    CROSS JOIN LATERAL unnest(named.ids, named.tokens) AS lost (id, token)
    CROSS JOIN LATERAL (
        SELECT id, cancel_requested_at, has_undo
        FROM {schema}.job
        WHERE id = lost.id
            AND token = lost.token
            AND state = 'running'
        FOR UPDATE
    ) AS job
),
back AS (
    UPDATE {schema}.job
    SET state = 'ready',
        filed = 'ready',
        attempt = job.attempt - 1,
        token = NULL,
        ended_token = job.ended_token
    FROM held
    WHERE job.id = held.id
        AND NOT held.is_cancelled
    RETURNING job.queue
),
gone AS (
    DELETE FROM {schema}.job
    USING held
    WHERE job.id = held.id
        AND held.is_cancelled
    RETURNING job.*
),
kept AS (
    INSERT INTO {schema}.archive (
        id, created_at, run_at, finished_at, fence, version, priority, attempt, crashes, rescues, drop_on,
        is_suspect, is_given_id, state, queue, task, args, session, ended_token, claimed_at, expires_at,
        cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
        progress, checkpoint, log, history, result, reason
    )
    SELECT
        id, created_at, run_at, clock.now, fence, version, priority, attempt - 1,
        crashes,
        rescues,
        {schema}.drop_on('cancelled', keep_seconds, clock.now),
        is_suspect,
        is_given_id, 'cancelled', queue, task, args, session, ended_token, claimed_at, expires_at,
        cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
        progress, checkpoint, log,
        {schema}.grown(history, {schema}.entry(
            'cancelled', clock.now, attempt, NULL, session, claimed_at, NULL, log
        )),
        NULL,
        reason
    FROM gone, clock
)
SELECT count(*), (
    SELECT {schema}.ring(array_agg(DISTINCT queue), false)
    FROM back
)
FROM held;
