-- enqueue: -> ready | scheduled, for ids that Winch drew. Locks nothing that another producer needs.
-- The jobs are one JSON text: a single parameter fits every caller's connection. Rings in the same
-- statement, so the wake-up leaves with the commit; the function is not even called when nobody waits at
-- all, because the call costs as much as the insert.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
new AS MATERIALIZED (
    SELECT
        job.*,
        greatest(clock.now, job.run_at, clock.now + make_interval(secs => job.delay_seconds)) AS due
    FROM json_to_recordset(:jobs::json) AS job (
        id uuid, task text, version integer, args text, queue text, priority integer,
        delay_seconds double precision, run_at timestamptz, tenant text, fifo text, unique_key text,
        tags text[], headers text, options text, expires_seconds double precision,
        max_attempts integer, keep_seconds double precision, is_given_id boolean
    ), clock
),
stored AS (
    INSERT INTO {schema}.job (
        id, created_at, run_at, sort_key, version, priority, is_given_id, state, queue, task, args,
        expires_at, keep_seconds, max_attempts, tenant, fifo, unique_key, tags, headers, options
    )
    SELECT
        id, clock.now, due, {schema}.sort_key(due, priority), version, priority, is_given_id,
        CASE WHEN due > clock.now THEN 'scheduled' ELSE 'ready' END, queue, task, args,
        clock.now + make_interval(secs => expires_seconds), keep_seconds, max_attempts, tenant, fifo,
        unique_key, tags, headers, options
    FROM new, clock
    RETURNING queue, state, run_at
)
SELECT CASE WHEN EXISTS (
    SELECT FROM {schema}.queue WHERE waiting_until > clock_timestamp()
) THEN {schema}.ring(
    array_agg(DISTINCT queue) FILTER (WHERE state = 'ready'),
    bool_or(state <> 'ready' AND run_at < (SELECT now FROM clock) + make_interval(secs => :soon_seconds))
) END
FROM stored;

-- enqueue.checked: the same for ids that callers gave, and for a repeat. The small table of given ids
-- decides; who inserts second waits for the first to commit or to roll back, also while a finish moves
-- the job. ON CONFLICT on job is for a repeat whose first try is still on its way. The looks into job and
-- archive are for an id that Winch drew and a caller gives back: it takes no row in the table of given ids,
-- because nobody would remove it with the job, and the id would answer for a job that is gone.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
new AS MATERIALIZED (
    SELECT
        job.*,
        greatest(clock.now, job.run_at, clock.now + make_interval(secs => job.delay_seconds)) AS due
    FROM json_to_recordset(:jobs::json) AS job (
        id uuid, task text, version integer, args text, queue text, priority integer,
        delay_seconds double precision, run_at timestamptz, tenant text, fifo text, unique_key text,
        tags text[], headers text, options text, expires_seconds double precision,
        max_attempts integer, keep_seconds double precision, is_given_id boolean
    ), clock
),
given AS (
    INSERT INTO {schema}.given_id (id)
    SELECT id
    FROM new
    WHERE is_given_id
        AND NOT EXISTS (SELECT FROM {schema}.job WHERE job.id = new.id)
        AND NOT EXISTS (SELECT FROM {schema}.archive WHERE archive.id = new.id)
    ORDER BY id
    ON CONFLICT DO NOTHING
    RETURNING id
),
stored AS (
    INSERT INTO {schema}.job (
        id, created_at, run_at, sort_key, version, priority, is_given_id, state, queue, task, args,
        expires_at, keep_seconds, max_attempts, tenant, fifo, unique_key, tags, headers, options
    )
    SELECT
        id, clock.now, due, {schema}.sort_key(due, priority), version, priority, is_given_id,
        CASE WHEN due > clock.now THEN 'scheduled' ELSE 'ready' END, queue, task, args,
        clock.now + make_interval(secs => expires_seconds), keep_seconds, max_attempts, tenant, fifo,
        unique_key, tags, headers, options
    FROM new, clock
    WHERE (NOT is_given_id OR id IN (SELECT id FROM given))
        AND NOT EXISTS (SELECT FROM {schema}.archive WHERE archive.id = new.id)
    ON CONFLICT (id) DO NOTHING
    RETURNING id, queue, state, run_at
),
rung AS MATERIALIZED (
    SELECT {schema}.ring(
        array_agg(DISTINCT queue) FILTER (WHERE state = 'ready'),
        bool_or(state <> 'ready' AND run_at < (SELECT now FROM clock) + make_interval(secs => :soon_seconds))
    )
    FROM stored
)
SELECT stored.id::text, (SELECT count(*) FROM rung)
FROM stored;

-- enqueue.final: which of the jobs just stored are final already. A first try may have been stored, run
-- and archived between the look of enqueue.checked and its insert; this statement's look is newer.
SELECT id::text
FROM {schema}.archive
WHERE id = ANY (:ids::uuid[]);

-- enqueue.undo: takes back what enqueue.final found; the transaction is still open.
DELETE FROM {schema}.job
WHERE id = ANY (:ids::uuid[])
    AND state IN ('ready', 'scheduled');
