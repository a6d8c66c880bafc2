-- crash: running -> ready | cancelled | dead. Fenced by (id, token), pairwise. Locks: the job rows, by id.
-- For the claims given by the worker whose job killed its own process (:session NULL, :is_own), and for all
-- that a session holds, after end_session has ended it: a statement of its own there, so that it sees what a
-- claim took that the first one waited for.
-- Guilty: started by a process that died, and still claimed so. They count a crash; the others go back.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
named AS MATERIALIZED (
    -- In lists: of those the planner expects few, and looks the jobs up by their ids.
    SELECT array_agg(id ORDER BY id) AS ids, array_agg(token ORDER BY id) AS tokens
    FROM (
        SELECT id, token
        FROM {schema}.claimed
        WHERE session = :session::uuid
        UNION
        SELECT id, token
        FROM json_to_recordset(:started::json) AS started (id uuid, token uuid)
        WHERE :session::uuid IS NULL
    ) AS found
),
locked AS MATERIALIZED (
    SELECT
        job.id, job.token, job.session, job.claimed_at, job.attempt, job.history, job.log, job.has_undo,
        job.cancel_requested_at IS NOT NULL AND job.has_undo IS NOT TRUE AS is_cancelled,
        :cause::text IS NOT NULL AND EXISTS (
            SELECT
            FROM json_to_recordset(:started::json) AS started (id uuid, token uuid)
            WHERE started.id = job.id
                AND started.token = job.token
        ) AS is_guilty
    FROM named
    CROSS JOIN LATERAL unnest(named.ids, named.tokens) AS claim (id, token)
    CROSS JOIN LATERAL (
        SELECT id, token, session, claimed_at, attempt, history, log, cancel_requested_at, has_undo
        FROM {schema}.job
        WHERE id = claim.id
            AND token = claim.token
            AND state = 'running'
        FOR UPDATE
    ) AS job
),
grown AS MATERIALIZED (
    SELECT
        id, token, is_cancelled, is_guilty, has_undo,
        CASE
            WHEN is_guilty THEN {schema}.grown(history, {schema}.entry(
                'crashed', clock.now, attempt, CASE WHEN :is_own THEN token END, session, claimed_at,
                jsonb_build_object('type', 'winch.JobCrashed', 'message', :cause::text), log
            ))
            WHEN is_cancelled THEN {schema}.grown(history, {schema}.entry(
                'cancelled', clock.now, attempt, NULL, session, claimed_at, NULL, log
            ))
            ELSE history
        END AS history
    FROM locked, clock
),
held AS MATERIALIZED (
    SELECT
        grown.*,
        {schema}.recent(history, 'crashed', clock.now - make_interval(secs => :window_seconds)) AS times
    FROM grown, clock
),
decided AS MATERIALIZED (
    SELECT
        held.*,
        CASE
            WHEN held.is_guilty
                AND held.times >= :most * CASE WHEN held.has_undo THEN :undo_lives ELSE 1 END THEN 'dead'
            WHEN held.is_cancelled THEN 'cancelled'
            ELSE 'ready'
        END AS next
    FROM held
),
back AS (
    UPDATE {schema}.job
    SET state = 'ready',
        filed = 'ready',
        attempt = job.attempt - 1,
        crashes = CASE WHEN decided.is_guilty THEN decided.times ELSE job.crashes END,
        is_suspect = job.is_suspect OR decided.is_guilty,
        token = NULL,
        ended_token = CASE WHEN :is_own THEN job.token ELSE job.ended_token END,
        history = decided.history
    FROM decided
    WHERE job.id = decided.id
        AND decided.next = 'ready'
    RETURNING job.queue
),
gone AS (
    DELETE FROM {schema}.job
    USING decided
    WHERE job.id = decided.id
        AND decided.next <> 'ready'
    RETURNING job.*, decided.next, decided.times, decided.history AS grown_history, decided.is_guilty
),
kept AS (
    INSERT INTO {schema}.archive (
        id, created_at, run_at, finished_at, fence, version, priority, attempt, crashes, rescues, drop_on,
        is_suspect, is_given_id, state, queue, task, args, session, ended_token, claimed_at, expires_at,
        cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
        progress, checkpoint, log, history, result, reason, fingerprint, has_undo
    )
    SELECT
        id, created_at, run_at, clock.now, fence, version, priority, attempt - 1,
        CASE WHEN is_guilty THEN times ELSE crashes END,
        rescues,
        {schema}.drop_on(next, keep_seconds, clock.now),
        is_suspect OR is_guilty,
        is_given_id, next, queue, task, args, session,
        CASE WHEN :is_own THEN token ELSE ended_token END,
        claimed_at, expires_at,
        cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
        progress, checkpoint, log,
        grown_history,
        NULL,
        CASE next
            WHEN 'dead' THEN 'crashed ' || times || ' times; last cause: ' || :cause::text
            ELSE reason
        END,
        CASE next WHEN 'dead' THEN {schema}.fingerprint(task, :trace::text) END,
        has_undo
    FROM gone, clock
)
SELECT decided.id::text, decided.token::text, decided.next, (
    SELECT {schema}.ring(array_agg(DISTINCT queue), false)
    FROM back
)
FROM decided
ORDER BY decided.id;
