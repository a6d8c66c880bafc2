-- retry: scheduled | retrying -> ready now; completed | cancelled | dead -> ready anew, from the archive.
-- Locks: the job rows, by id. History and fence stay, so tokens and fence numbers never repeat.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
held AS MATERIALIZED (
    SELECT id, state
    FROM {schema}.job
    WHERE id = ANY (:ids::uuid[])
    ORDER BY id
    FOR UPDATE
),
early AS (
    UPDATE {schema}.job
    SET state = 'ready',
        filed = 'ready',
        run_at = clock.now,
        sort_key = {schema}.sort_key(clock.now, job.priority),
        crashes = 0,
        rescues = 0,
        version = coalesce(:version::integer, job.version),
        args = coalesce(:args::text, job.args),
        queue = coalesce(:queue::text, job.queue),
        options = coalesce(:options::text, job.options),
        gate = CASE WHEN substr(coalesce(:options::text, job.options), 2, 8) = '"gates":' THEN '' END,
        max_attempts = coalesce(:max_attempts::integer, job.max_attempts),
        history = {schema}.grown(job.history, {schema}.note('retried', clock.now, :by::text, :note::text))
    FROM held, clock
    WHERE job.id = held.id
        AND held.state IN ('scheduled', 'retrying')
    RETURNING job.queue
),
final AS (
    DELETE FROM {schema}.archive
    WHERE id = ANY (:ids::uuid[])
    RETURNING archive.*
),
anew AS (
    INSERT INTO {schema}.job (
        id, created_at, run_at, sort_key, fence, version, priority, is_suspect, is_given_id, state, queue,
        task, args, session, ended_token, claimed_at, expires_at, keep_seconds, max_attempts, tenant, fifo, seq,
        unique_key, tags, headers, options, progress, checkpoint, log, history, has_undo
    )
    SELECT
        id, created_at, again.run_at, {schema}.sort_key(again.run_at, priority), fence,
        coalesce(:version::integer, version), priority, is_suspect, is_given_id, 'ready',
        coalesce(:queue::text, queue), task, coalesce(:args::text, args), session, ended_token, claimed_at,
        expires_at, keep_seconds, coalesce(:max_attempts::integer, max_attempts), tenant, fifo,
        CASE WHEN fifo IS NOT NULL THEN coalesce(seq, {schema}.micros(created_at)) END, unique_key,
        tags, headers, coalesce(:options::text, options), progress,
        CASE WHEN state <> 'completed' OR :from_step::text IS NOT NULL THEN checkpoint END, log,
        {schema}.grown(
            -- The record's fields described the attempt that completed; from now on they describe others,
            -- and a repeat of its finish must still be recognised.
            CASE
                WHEN state = 'completed' THEN {schema}.grown(history, {schema}.entry(
                    'completed', finished_at, attempt, ended_token, session, claimed_at, NULL, log
                ))
                ELSE history
            END,
            {schema}.note('retried', clock.now, :by::text, :note::text)
        ),
        has_undo
    FROM final, clock, LATERAL (
        -- Later than its last run time: a new life differs from a claim that goes on after a crash.
        SELECT greatest(clock.now, final.run_at + interval '1 microsecond') AS run_at
    ) AS again
    RETURNING queue
)
SELECT found.id::text, found.state, (
    SELECT {schema}.ring(array_agg(DISTINCT queue), false)
    FROM (SELECT queue FROM early UNION ALL SELECT queue FROM anew) AS ready
)
FROM (SELECT id, state FROM held UNION ALL SELECT id, state FROM final) AS found;

-- retry.keyed: the final jobs among these that need a unique key again.
SELECT id::text, state, unique_key
FROM {schema}.archive
WHERE id = ANY (:ids::uuid[])
    AND unique_key IS NOT NULL;
