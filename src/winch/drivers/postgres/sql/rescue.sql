-- rescue: ends sessions whose lease is over. Locks: these sessions FOR UPDATE SKIP LOCKED: one in which a
-- claim is on its way is left to the next sweep; a claim or beat that comes later finds its session ended.
-- A lease never lasts longer than a lease from now. One does where the clock was set back: it is shortened.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
over AS MATERIALIZED (
    SELECT id
    FROM {schema}.session
    WHERE ended_at IS NULL
        AND lease_until <= (SELECT least(now, :as_of::timestamptz) FROM clock)
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
far AS MATERIALIZED (
    SELECT id
    FROM {schema}.session, clock
    WHERE ended_at IS NULL
        AND lease_until > clock.now + make_interval(secs => lease_seconds)
    ORDER BY id
    FOR NO KEY UPDATE OF session SKIP LOCKED
),
shortened AS (
    UPDATE {schema}.session
    SET lease_until = clock.now + make_interval(secs => lease_seconds)
    FROM far, clock
    WHERE session.id = far.id
)
UPDATE {schema}.session
SET ended_at = (SELECT now FROM clock),
    end_reason = 'lease over'
FROM over
WHERE session.id = over.id;

-- rescue.jobs: running -> ready | cancelled | dead, for jobs of ended and unknown sessions. Locks: the job
-- rows, by id, SKIP LOCKED. A statement of its own, after the sessions' locks.
-- Looked for first and locked then, by (id, token): a job that was finished and claimed anew in between is
-- another claim, and the check of its session takes no part in the second look after a lock.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
orphan AS MATERIALIZED (
    -- In lists: of those the planner expects few, and looks the jobs up by their ids.
    SELECT array_agg(id ORDER BY id) AS ids, array_agg(token ORDER BY id) AS tokens
    FROM (
        SELECT claimed.id, claimed.token
        FROM {schema}.claimed
        WHERE NOT EXISTS (
                SELECT
                FROM {schema}.session
                WHERE session.id = claimed.session
                    AND session.ended_at IS NULL
            )
        ORDER BY claimed.id
        LIMIT :limit
    ) AS found
),
locked AS MATERIALIZED (
    SELECT
        job.id, job.token, job.session, job.claimed_at, job.attempt, job.history, job.log, job.has_undo,
        job.cancel_requested_at IS NOT NULL AND job.has_undo IS NOT TRUE AS is_cancelled
    FROM orphan
    CROSS JOIN LATERAL unnest(orphan.ids, orphan.tokens) AS claim (id, token)
    CROSS JOIN LATERAL (
        SELECT id, token, session, claimed_at, attempt, history, log, cancel_requested_at, has_undo
        FROM {schema}.job
        WHERE id = claim.id
            AND token = claim.token
            AND state = 'running'
        FOR UPDATE SKIP LOCKED
    ) AS job
),
grown AS MATERIALIZED (
    SELECT
        id, token, session, is_cancelled, has_undo,
        {schema}.grown(history, {schema}.entry(
            'rescued', clock.now, attempt, NULL, session, claimed_at,
            jsonb_build_object('type', 'winch.JobRescued', 'message', :cause::text), log
        )) AS history
    FROM locked, clock
),
held AS MATERIALIZED (
    SELECT
        grown.*,
        {schema}.recent(history, 'rescued', clock.now - make_interval(secs => :window_seconds)) AS times
    FROM grown, clock
),
decided AS MATERIALIZED (
    SELECT
        held.*,
        CASE
            WHEN held.times >= :most * CASE WHEN held.has_undo THEN :undo_lives ELSE 1 END THEN 'dead'
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
        rescues = decided.times,
        is_suspect = true,
        token = NULL,
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
    RETURNING job.*, decided.next, decided.times, decided.history AS grown_history
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
        crashes,
        times,
        {schema}.drop_on(next, keep_seconds, clock.now),
        true,
        is_given_id, next, queue, task, args, session, ended_token, claimed_at, expires_at,
        cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
        progress, checkpoint, log,
        grown_history,
        NULL,
        CASE next
            WHEN 'dead' THEN 'rescued ' || times || ' times; last cause: ' || :cause::text
            ELSE reason
        END,
        CASE next WHEN 'dead' THEN {schema}.fingerprint(task, :trace::text) END,
        has_undo
    FROM gone, clock
)
SELECT decided.id::text, decided.token::text, decided.session::text, decided.next, (
    SELECT {schema}.ring(array_agg(DISTINCT queue), false)
    FROM back
)
FROM decided
ORDER BY decided.id;

-- rescue.leases: removes the rows of claims by the hundred of which nothing runs any more, or what runs is filed.
-- No job becomes running under an old token, so what is looked for cannot come back. Locks: these rows, SKIP LOCKED.
DELETE FROM {schema}.lease
WHERE token = ANY (ARRAY(
    SELECT token
    FROM {schema}.lease
    WHERE unended <= 0
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
) || ARRAY(
    SELECT old.token
    FROM {schema}.lease AS old
    WHERE old.unended > 0
        AND old.claimed_at < coalesce(:now::timestamptz, clock_timestamp()) - make_interval(secs => :old_seconds)
        AND NOT EXISTS (
            SELECT
            FROM unnest(old.ids) AS member (id)
            CROSS JOIN LATERAL (
                SELECT
                FROM {schema}.job
                WHERE job.id = member.id
                    AND job.token = old.token
                    AND job.filed = 'ready'
                OFFSET 0
            ) AS job
        )
    LIMIT :most
    FOR UPDATE SKIP LOCKED
));

-- rescue.file: running jobs of claims by the hundred that take longer than such claims are for leave the index of
-- ready jobs. Locks: the job rows, SKIP LOCKED. Not those of a session that may be ended: a process that rescues them at the same
-- time would pass them over. The claim's own row goes with a later rescue.leases.
UPDATE {schema}.job
SET filed = 'running'
WHERE ctid = ANY (ARRAY(
    SELECT job.ctid
    FROM (
        SELECT token, ids
        FROM {schema}.lease
        WHERE claimed_at < coalesce(:now::timestamptz, clock_timestamp()) - make_interval(secs => :old_seconds)
            AND EXISTS (
                SELECT
                FROM {schema}.session
                WHERE session.id = lease.session
                    AND session.ended_at IS NULL
                    AND session.lease_until > coalesce(:now::timestamptz, clock_timestamp())
            )
        ORDER BY claimed_at
        LIMIT :most
    ) AS old
    CROSS JOIN LATERAL unnest(old.ids) AS member (id)
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM {schema}.job
        WHERE id = member.id
            AND token = old.token
            AND filed = 'ready'
        FOR UPDATE SKIP LOCKED
    ) AS job
));
