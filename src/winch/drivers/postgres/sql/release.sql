-- release: running -> ready at the old place | cancelled where that was requested and nothing is to be undone.
-- Fenced by (id, token), pairwise. Locks: the job rows, by id. The attempt is handed back; the token is
-- remembered, because the claim's own holder ended it. finish.ended answers what did not take.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
held AS MATERIALIZED (
    SELECT job.id, job.cancel_requested_at IS NOT NULL AND job.has_undo IS NOT TRUE AS is_cancelled
    FROM json_to_recordset(:claims::json) AS claim (id uuid, token uuid)
    JOIN {schema}.job ON job.id = claim.id
        AND job.token = claim.token
        AND job.state = 'running'
    ORDER BY job.id
    FOR UPDATE OF job
),
back AS (
    UPDATE {schema}.job
    SET state = 'ready',
        filed = 'ready',
        attempt = job.attempt - 1,
        token = NULL,
        ended_token = job.token,
        history = CASE
            WHEN :has_started::boolean THEN {schema}.grown(job.history, {schema}.entry(
                'released', clock.now, job.attempt, job.token, job.session, job.claimed_at, NULL, job.log
            ))
            ELSE job.history
        END
    FROM held, clock
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
        is_given_id, 'cancelled', queue, task, args, session, token, claimed_at, expires_at,
        cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
        progress, checkpoint, log,
        {schema}.grown(history, {schema}.entry(
            'cancelled', clock.now, attempt, token, session, claimed_at, NULL, log
        )),
        NULL,
        reason
    FROM gone, clock
)
SELECT held.id::text, (
    SELECT {schema}.ring(array_agg(DISTINCT queue), false)
    FROM back
)
FROM held;
