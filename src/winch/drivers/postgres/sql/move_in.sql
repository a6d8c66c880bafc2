-- move_in: the number of the last parcel that came. Locks: the record of the move, so that two movers take turns.
INSERT INTO {schema}.book_line (book, key, body)
VALUES ('parcel', :key::text, '-1')
ON CONFLICT (book, key) DO UPDATE
SET body = book_line.body
RETURNING body;

-- move_in.numbers: the numbers of members of FIFO keys are not less than the clock from now on, so that a
-- member that is stored here from now on comes after those that arrive.
SELECT setval('{schema}.job_seq', {schema}.micros(clock_timestamp()))
FROM {schema}.job_seq
WHERE last_value < {schema}.micros(clock_timestamp());

-- move_in.known: which of these jobs are here.
SELECT id::text
FROM {schema}.job
WHERE id = ANY (:ids::uuid[])
UNION ALL
SELECT id::text
FROM {schema}.archive
WHERE id = ANY (:ids::uuid[]);

-- move_in.ids: the ids are taken, as those that callers gave: their store may have known them as such.
INSERT INTO {schema}.given_id (id)
SELECT unnest(:ids::uuid[])
ON CONFLICT DO NOTHING;

-- move_in.live: live jobs of another store, as they were there. Wakes their workers.
WITH stored AS (
    INSERT INTO {schema}.job (
        id, created_at, run_at, sort_key, fence, version, priority, attempt, crashes, rescues, is_suspect,
        is_given_id, state, filed, queue, task, args, session, ended_token, claimed_at, expires_at,
        cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
        progress, checkpoint, log, history, reason, has_undo
    )
    SELECT
        id, created_at, run_at, {schema}.sort_key(run_at, priority), fence, version, priority, attempt, crashes,
        rescues, is_suspect, true, state, state, queue, task, args, session, ended_token, claimed_at, expires_at,
        cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
        progress, checkpoint, log, history, reason, has_undo
    FROM json_to_recordset(:jobs::json) AS job (
        id uuid, created_at timestamptz, run_at timestamptz, fence bigint, version integer, priority integer,
        attempt integer, crashes integer, rescues integer, is_suspect boolean, state text, queue text,
        task text, args text, session uuid, ended_token uuid, claimed_at timestamptz, expires_at timestamptz,
        cancel_requested_at timestamptz, keep_seconds double precision, max_attempts integer, tenant text,
        fifo text, seq bigint, unique_key text, tags text[], headers text, options text, progress text,
        checkpoint text, log text, history jsonb, reason text, has_undo boolean
    )
    RETURNING queue, state
)
SELECT {schema}.ring(array_agg(DISTINCT queue) FILTER (WHERE state = 'ready'), bool_or(state <> 'ready'))
FROM stored;

-- move_in.final: final jobs of another store.
INSERT INTO {schema}.archive (
    id, created_at, run_at, finished_at, fence, version, priority, attempt, crashes, rescues, drop_on, is_suspect,
    is_given_id, state, queue, task, args, session, ended_token, claimed_at, expires_at,
    cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
    progress, checkpoint, log, history, result, reason, fingerprint, has_undo
)
SELECT
    id, created_at, run_at, finished_at, fence, version, priority, attempt, crashes, rescues,
    {schema}.drop_on(state, keep_seconds, finished_at), is_suspect, true, state, queue, task, args, session,
    ended_token, claimed_at, expires_at, cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq,
    unique_key, tags, headers, options, progress, checkpoint, log, history, result, reason, fingerprint, has_undo
FROM json_to_recordset(:jobs::json) AS job (
    id uuid, created_at timestamptz, run_at timestamptz, finished_at timestamptz, fence bigint, version integer,
    priority integer, attempt integer, crashes integer, rescues integer, is_suspect boolean, state text,
    queue text, task text, args text, session uuid, ended_token uuid, claimed_at timestamptz,
    expires_at timestamptz, cancel_requested_at timestamptz, keep_seconds double precision, max_attempts integer,
    tenant text, fifo text, seq bigint, unique_key text, tags text[], headers text, options text, progress text,
    checkpoint text, log text, history jsonb, result text, reason text, fingerprint text, has_undo boolean
);
