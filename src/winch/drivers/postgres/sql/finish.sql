-- finish: running -> completed. Fenced by (id, token), pairwise. Locks: the job rows, then leases.
-- Answers NULL where all took, else the ids that did. A token is there exactly while the job runs, so the
-- state needs no look of its own. The jobs are looked up by id and deleted by ctid: in a join, a planner that believes the
-- table empty compares every running job with every outcome, which was ten times slower. The look at the pairs is the fence: a
-- row may change hands while the delete waits for it. In a CASE, so that it becomes no join.
-- A lease is counted down only where the whole call took: it must not fall below what still runs. A row that was only written to meanwhile (progress, a requested
-- cancel) may be missed, depending on the server's version; the caller finds it live and asks again.
-- Results that differ come as one object by id: looked for in a list, each would cost as much as the list is long.
-- The other outcomes grow the history and go through finish.other.
WITH clock AS MATERIALIZED (
    SELECT now, {schema}.drop_on('completed', NULL, now) AS usual, :results::jsonb AS results
    FROM (SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now) AS given
),
gone AS (
    DELETE FROM {schema}.job
    WHERE ctid = ANY (ARRAY(
            SELECT (
                SELECT job.ctid
                FROM {schema}.job
                WHERE job.id = outcome.job
                    AND job.token = outcome.by_token
            )
            FROM unnest(:ids::uuid[], :tokens::uuid[]) AS outcome (job, by_token)
        ))
        AND CASE
            WHEN (id, token) IN (
                SELECT outcome.job, outcome.by_token
                FROM unnest(:ids::uuid[], :tokens::uuid[]) AS outcome (job, by_token)
            ) THEN true
        END
    RETURNING
        id, created_at, run_at, fence, version, priority, attempt, crashes, rescues, is_suspect,
        is_given_id, queue, task, args, session, token, claimed_at, expires_at, cancel_requested_at,
        keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options, progress, checkpoint,
        log, history
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
        CASE
            WHEN keep_seconds IS NULL THEN clock.usual
            ELSE {schema}.drop_on('completed', keep_seconds, clock.now)
        END,
        is_suspect,
        is_given_id, 'completed', queue, task, args, session, token, claimed_at, expires_at,
        cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
        progress, checkpoint, log,
        history,
        CASE WHEN clock.results IS NULL THEN :result::text ELSE clock.results ->> id::text END,
        NULL
    FROM gone, clock
),
counted AS MATERIALIZED (
    SELECT count(*) = cardinality(:ids::uuid[]) AS is_whole
    FROM gone
),
lessened AS (
    UPDATE {schema}.lease
    SET unended = unended - ended.number
    FROM unnest(:leases::uuid[], :numbers::integer[]) AS ended (token, number), counted
    WHERE lease.token = ended.token
        AND counted.is_whole
)
SELECT CASE WHEN NOT is_whole THEN ARRAY(SELECT id::text FROM gone) END
FROM counted;

-- finish.gated: running -> completed, for jobs with gates, with all their permits. Fenced by (id, token), pairwise. Locks: the
-- gates, then the job rows. Returns how many took, NULL where nothing is done (see complete_gated); and which, where it is not all.
SELECT cardinality(ended), CASE WHEN cardinality(ended) < cardinality(:ids::uuid[]) THEN ended::text[] END
FROM {schema}.complete_gated(:ids::uuid[], :tokens::uuid[], :results::jsonb, :result::text, :now::timestamptz);

-- finish.other: running -> retrying | scheduled | blocked | ready | cancelled | dead.
-- Fenced by (id, token), pairwise. Locks: the job rows, by id, before it decides, so that a cancel requested
-- at the same time is seen. A requested cancel beats every state that would run again; a job that has
-- something to undo runs again at once, to do that.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
held AS MATERIALIZED (
    SELECT
        outcome.*,
        CASE
            WHEN outcome.state IN ('completed', 'cancelled', 'dead') THEN outcome.state
            WHEN job.cancel_requested_at IS NULL THEN outcome.state
            WHEN job.has_undo THEN 'ready'
            ELSE 'cancelled'
        END AS next,
        CASE
            WHEN job.cancel_requested_at IS NULL THEN clock.now + make_interval(secs => outcome.delay_seconds)
            ELSE clock.now
        END AS due
    FROM json_to_recordset(:outcomes::json) AS outcome (
        job uuid, by_token uuid, state text, what text, delay_seconds double precision, counts boolean,
        result text, error jsonb, given_reason text, more_log text, fingerprint text, trace text
    )
    JOIN {schema}.job ON job.id = outcome.job
        AND job.token = outcome.by_token
        AND job.state = 'running'
    CROSS JOIN clock
    ORDER BY job.id
    FOR UPDATE OF job
),
again AS (
    UPDATE {schema}.job
    SET state = held.next,
        filed = held.next,
        run_at = held.due,
        sort_key = {schema}.sort_key(held.due, job.priority),
        attempt = CASE WHEN held.counts THEN job.attempt ELSE job.attempt - 1 END,
        token = NULL,
        ended_token = held.by_token,
        is_suspect = false,
        history = {schema}.grown(job.history, {schema}.entry(
            held.what, (SELECT now FROM clock), job.attempt, held.by_token, job.session, job.claimed_at,
            held.error, {schema}.longer(job.log, held.more_log)
        )),
        log = {schema}.longer(job.log, held.more_log),
        reason = held.given_reason
    FROM held
    WHERE job.id = held.job
        AND held.next NOT IN ('completed', 'cancelled', 'dead')
    RETURNING job.queue, job.state, job.run_at
),
gone AS (
    DELETE FROM {schema}.job
    USING held
    WHERE job.id = held.job
        AND held.next IN ('completed', 'cancelled', 'dead')
    RETURNING
        job.*, held.by_token, held.next, held.what, held.error, held.given_reason, held.result, held.more_log,
        held.fingerprint, held.trace
),
kept AS (
    INSERT INTO {schema}.archive (
        id, created_at, run_at, finished_at, fence, version, priority, attempt, crashes, rescues, drop_on,
        is_suspect, is_given_id, state, queue, task, args, session, ended_token, claimed_at, expires_at,
        cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
        progress, checkpoint, log, history, result, reason, fingerprint, has_undo
    )
    SELECT
        id, created_at, run_at, clock.now, fence, version, priority, attempt,
        crashes,
        rescues,
        {schema}.drop_on(next, keep_seconds, clock.now),
        is_suspect,
        is_given_id, next, queue, task, args, session, by_token, claimed_at, expires_at,
        cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
        progress, checkpoint, {schema}.longer(log, more_log),
        CASE
            WHEN next = 'completed' THEN history
            ELSE {schema}.grown(history, {schema}.entry(
                CASE next WHEN 'cancelled' THEN 'cancelled' ELSE what END,
                clock.now, attempt, by_token, session, claimed_at, error, {schema}.longer(log, more_log)
            ))
        END,
        CASE next WHEN 'completed' THEN result END,
        CASE WHEN next = 'cancelled' AND cancel_requested_at IS NOT NULL THEN reason ELSE given_reason END,
        CASE next WHEN 'dead' THEN coalesce(fingerprint, {schema}.fingerprint(task, trace)) END,
        has_undo
    FROM gone, clock
)
SELECT held.job::text, (
    SELECT {schema}.ring(
        array_agg(DISTINCT queue) FILTER (WHERE state = 'ready'),
        bool_or(state <> 'ready' AND run_at < (SELECT now FROM clock) + make_interval(secs => :soon_seconds))
    )
    FROM again
)
FROM held;

-- finish.ended: how the claims that are no longer live had ended, live jobs and kept ones in one look. A
-- statement of its own, because the one that did not take has an older snapshot than what it waited for.
SELECT
    id::text, token::text, state, ended_token::text, (
        SELECT jsonb_object_agg(entry ->> 'token', entry ->> 'what')
        FROM jsonb_array_elements(history) AS entry
        WHERE entry ->> 'token' IS NOT NULL
    )::text
FROM {schema}.job
WHERE id = ANY (:ids::uuid[])
UNION ALL
SELECT
    id::text, NULL, state, ended_token::text, (
        SELECT jsonb_object_agg(entry ->> 'token', entry ->> 'what')
        FROM jsonb_array_elements(history) AS entry
        WHERE entry ->> 'token' IS NOT NULL
    )::text
FROM {schema}.archive
WHERE id = ANY (:ids::uuid[]);

-- finish.waits: what the jobs wait for that this call has blocked; first what they waited for before goes.
DELETE FROM {schema}.waiting
WHERE job = ANY (:ids::uuid[]);

-- finish.wait: the waits of this call, and that they are to be looked at: what they wait for may have come already.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
begun AS (
    INSERT INTO {schema}.waiting (job, key, is_enough, until)
    SELECT wait.job, wait.key, wait.is_enough, clock.now + make_interval(secs => wait.timeout_seconds)
    FROM json_to_recordset(:waits::json) AS wait (
        job uuid, key text, is_enough boolean, timeout_seconds double precision
    )
    JOIN {schema}.job ON job.id = wait.job
        AND job.state = 'blocked'
    CROSS JOIN clock
    ON CONFLICT (job, key) DO NOTHING
    RETURNING key
),
noted AS (
    INSERT INTO {schema}.recheck (key)
    SELECT DISTINCT key
    FROM begun
    WHERE key <> ''
)
SELECT {schema}.ring(NULL, true)
FROM begun
LIMIT 1;
