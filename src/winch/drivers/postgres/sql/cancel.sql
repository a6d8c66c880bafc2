-- cancel: scheduled | blocked | ready | retrying -> cancelled; a running job keeps running with a request, which
-- its claim's own end carries out. One that has something to undo gets such a request too, and is ready to do
-- that. Locks: the job rows, by id. cancel.states returns final jobs.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
held AS MATERIALIZED (
    SELECT id, state, cancel_requested_at, state <> 'running' AND has_undo IS NOT TRUE AS is_over
    FROM {schema}.job
    WHERE id = ANY (:ids::uuid[])
    ORDER BY id
    FOR UPDATE
),
asked AS (
    UPDATE {schema}.job
    SET cancel_requested_at = (SELECT now FROM clock),
        reason = coalesce(:reason::text, 'cancelled by ' || :by::text),
        history = {schema}.grown(job.history, {schema}.note(
            'cancel requested', (SELECT now FROM clock), :by::text, :reason::text
        )),
        gate = CASE WHEN job.gate IS NOT NULL THEN '' END,
        state = CASE held.state WHEN 'running' THEN 'running' ELSE 'ready' END,
        filed = CASE held.state WHEN 'running' THEN job.filed ELSE 'ready' END,
        run_at = CASE WHEN held.state IN ('running', 'ready') THEN job.run_at ELSE clock.now END,
        sort_key = CASE
            WHEN held.state IN ('running', 'ready') THEN job.sort_key
            ELSE {schema}.sort_key(clock.now, job.priority)
        END
    FROM held, clock
    WHERE job.id = held.id
        AND NOT held.is_over
        AND held.cancel_requested_at IS NULL
    RETURNING job.queue, job.state
),
gone AS (
    DELETE FROM {schema}.job
    USING held
    WHERE job.id = held.id
        AND held.is_over
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
        id, created_at, run_at, clock.now, fence, version, priority, attempt,
        crashes,
        rescues,
        {schema}.drop_on('cancelled', keep_seconds, clock.now),
        is_suspect,
        is_given_id, 'cancelled', queue, task, args, session, ended_token, claimed_at, expires_at,
        cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
        progress, checkpoint, log,
        {schema}.grown(history, {schema}.note('cancelled', clock.now, :by::text, :reason::text)),
        NULL,
        coalesce(:reason::text, 'cancelled by ' || :by::text)
    FROM gone, clock
)
SELECT id::text, state, (
    SELECT {schema}.ring(array_agg(DISTINCT queue), false)
    FROM asked
    WHERE asked.state = 'ready'
)
FROM held;

-- cancel.states: where the jobs are that an operator's verb did not find, live and kept ones in one look.
SELECT id::text, state
FROM {schema}.job
WHERE id = ANY (:ids::uuid[])
UNION ALL
SELECT id::text, state
FROM {schema}.archive
WHERE id = ANY (:ids::uuid[]);
