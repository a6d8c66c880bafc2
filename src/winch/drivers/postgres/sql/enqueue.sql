-- enqueue: -> ready | scheduled, for ids that Winch drew. Locks nothing that another producer needs.
-- The jobs are one JSON text: a single parameter fits every caller's connection. Rings in the same
-- statement, so the wake-up leaves with the commit; the function is not even called when no worker waits at
-- all, because the call costs as much as the insert. Members of FIFO keys are numbered in the order of the call: the
-- sort stands below the numbers. Returns when the jobs were stored.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
new AS MATERIALIZED (
    SELECT
        job.*,
        greatest(clock.now, job.run_at, clock.now + make_interval(secs => job.delay_seconds)) AS due
    FROM ROWS FROM (json_to_recordset(:jobs::json) AS (
        id uuid, task text, version integer, args text, queue text, priority integer,
        delay_seconds double precision, run_at timestamptz, tenant text, fifo text, unique_key text,
        tags text[], headers text, options text, expires_seconds double precision,
        max_attempts integer, keep_seconds double precision, is_given_id boolean
    )) WITH ORDINALITY AS job, clock
),
stored AS (
    INSERT INTO {schema}.job (
        id, created_at, run_at, sort_key, version, priority, is_given_id, state, filed, queue, task, args,
        expires_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options
    )
    SELECT
        id, clock.now, due, {schema}.sort_key(due, priority), version, priority, is_given_id,
        CASE WHEN due > clock.now THEN 'scheduled' ELSE 'ready' END,
        CASE WHEN due > clock.now THEN 'scheduled' ELSE 'ready' END, queue, task, args,
        clock.now + make_interval(secs => expires_seconds), keep_seconds, max_attempts, tenant, fifo,
        CASE WHEN fifo IS NOT NULL THEN {schema}.next_seq() END, unique_key, tags, headers, options
    FROM (SELECT * FROM new ORDER BY ordinality) AS new, clock
    RETURNING queue, state, run_at
)
SELECT (SELECT now FROM clock), CASE WHEN EXISTS (
    SELECT FROM {schema}.queue WHERE waiting_until > clock_timestamp()
) THEN {schema}.ring(
    array_agg(DISTINCT queue) FILTER (WHERE state = 'ready'),
    bool_or(state <> 'ready' AND run_at < (SELECT now FROM clock) + make_interval(secs => :soon_seconds))
) END
FROM stored;

-- enqueue.alike: the same for jobs that differ in nothing but id, args and headers and are ready at once, as
-- most are that are stored by the thousand. What they share is written and worked out once, and the lists are no
-- JSON: half the cost. Rings as enqueue does, by what `ring` would do for one queue.
WITH clock AS MATERIALIZED (
    SELECT
        now,
        {schema}.sort_key(now, :priority::integer) AS sort_key,
        now + make_interval(secs => :expires_seconds::float8) AS expires_at
    FROM (SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now) AS given
),
stored AS (
    INSERT INTO {schema}.job (
        id, created_at, run_at, sort_key, version, priority, state, queue, task, args, expires_at, keep_seconds,
        max_attempts, tags, headers, options
    )
    SELECT
        new.id, clock.now, clock.now, clock.sort_key, :version::integer, :priority::integer, 'ready', :queue::text,
        :task::text, new.args, clock.expires_at, :keep_seconds::float8, :max_attempts::integer, :tags::text[],
        new.headers, :options::text
    FROM clock, unnest(:ids::uuid[], :args::text[], :headers::text[]) AS new (id, args, headers)
)
SELECT clock.now, CASE WHEN EXISTS (
    SELECT FROM {schema}.queue WHERE name = :queue::text AND waiting_until > clock_timestamp()
) THEN pg_notify('winch_' || md5('{schema}'), json_build_array(:queue::text)::text) END
FROM clock;

-- enqueue.one: the same for one job with nothing but its arguments and its gates, in a transaction of its own. No part of it is run
-- for its own sake: that is a sixth of the server's time. Where a worker waits for the queue, the job asks for the
-- worker's offer by a fence below zero: the trigger job_is_handed_over takes the offer, or rings. Never in the
-- transaction of a caller, where the offer that was taken would be of no use until that ends. With `is_noted` the
-- triggers for events learn the verb in the statement itself: a transaction of several would hold the offer for longer.
-- The clock is that of the statement's arrival, which is the same wherever the statement names it.
INSERT INTO {schema}.job (
    id, created_at, run_at, sort_key, fence, version, priority, state, queue, task, args, max_attempts, fifo, seq, options
)
SELECT
    :id::uuid, statement_timestamp(), statement_timestamp(),
    {schema}.sort_key(statement_timestamp(), :priority::integer),
    CASE
        WHEN EXISTS (
            SELECT FROM {schema}.queue WHERE name = :queue::text AND waiting_until > clock_timestamp()
        ) THEN -1
        ELSE 0
    END,
    :version::integer, :priority::integer, 'ready', :queue::text, :task::text, :args::text, :max_attempts::integer,
    :fifo::text, CASE WHEN :fifo::text IS NOT NULL THEN {schema}.next_seq() END, :options::text
WHERE CASE
    WHEN :is_noted::boolean THEN set_config('winch.at', '', true) || set_config('winch.verb', 'enqueue', true) <> ''
    ELSE true
END
RETURNING run_at;

-- enqueue.checked: the same for ids that callers gave, and for a repeat. The small table of given ids
-- decides; the second insert waits for the first to commit or to roll back, also while a finish moves
-- the job. ON CONFLICT on job is for a repeat whose first try is still on its way. The looks into job and
-- archive are for an id that Winch drew and a caller gives back: it takes no row in the table of given ids,
-- because nothing would remove it with the job, and the id would answer for a job that is gone.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
new AS MATERIALIZED (
    SELECT
        job.*,
        greatest(clock.now, job.run_at, clock.now + make_interval(secs => job.delay_seconds)) AS due
    FROM ROWS FROM (json_to_recordset(:jobs::json) AS (
        id uuid, task text, version integer, args text, queue text, priority integer,
        delay_seconds double precision, run_at timestamptz, tenant text, fifo text, unique_key text,
        tags text[], headers text, options text, expires_seconds double precision,
        max_attempts integer, keep_seconds double precision, is_given_id boolean
    )) WITH ORDINALITY AS job, clock
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
        id, created_at, run_at, sort_key, version, priority, is_given_id, state, filed, queue, task, args,
        expires_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options
    )
    SELECT
        id, clock.now, due, {schema}.sort_key(due, priority), version, priority, is_given_id,
        CASE WHEN due > clock.now THEN 'scheduled' ELSE 'ready' END,
        CASE WHEN due > clock.now THEN 'scheduled' ELSE 'ready' END, queue, task, args,
        clock.now + make_interval(secs => expires_seconds), keep_seconds, max_attempts, tenant, fifo,
        CASE WHEN fifo IS NOT NULL THEN {schema}.next_seq() END, unique_key, tags, headers, options
    FROM (
        SELECT *
        FROM new
        WHERE (NOT is_given_id OR id IN (SELECT id FROM given))
            AND NOT EXISTS (SELECT FROM {schema}.archive WHERE archive.id = new.id)
        ORDER BY ordinality
    ) AS new, clock
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
SELECT stored.id::text, (SELECT now FROM clock), (SELECT count(*) FROM rung)
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

-- enqueue.keys: takes unique keys that are free, in their order. Locks: waits for a transaction that is about to take or
-- free one of them to commit or to roll back.
INSERT INTO {schema}.unique_key (key, job)
SELECT wanted.key, wanted.job
FROM unnest(:keys::text[], :jobs::uuid[]) AS wanted (key, job)
ORDER BY wanted.key COLLATE "C"
ON CONFLICT (key) DO NOTHING
RETURNING key;

-- enqueue.holders: the holders of the keys that were not free. Job and key are of one look, and both come and
-- go at once, so a key without a live job is left over from a mishap.
SELECT unique_key.key, unique_key.job::text, job.state
FROM {schema}.unique_key
LEFT JOIN {schema}.job ON job.id = unique_key.job
WHERE unique_key.key = ANY (:keys::text[]);

-- enqueue.lock: the holders that are to be replaced, as they are now and stay. Locks: the job rows, by id.
SELECT id::text, state, unique_key
FROM {schema}.job
WHERE id = ANY (:ids::uuid[])
ORDER BY id
FOR UPDATE;

-- enqueue.replace: scheduled | ready | retrying -> ready | scheduled, with what an enqueue brings instead.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
new AS MATERIALIZED (
    SELECT
        job.*,
        greatest(clock.now, least(
            greatest(clock.now, job.run_at, clock.now + make_interval(secs => job.delay_seconds)),
            holder.created_at + make_interval(secs => job.max_wait_seconds)
        )) AS due
    FROM json_to_recordset(:jobs::json) AS job (
        id uuid, version integer, args text, priority integer, delay_seconds double precision,
        run_at timestamptz, max_wait_seconds double precision
    )
    JOIN {schema}.job AS holder ON holder.id = job.id
    CROSS JOIN clock
),
replaced AS (
    UPDATE {schema}.job
    SET state = CASE WHEN new.due > clock.now THEN 'scheduled' ELSE 'ready' END,
        filed = CASE WHEN new.due > clock.now THEN 'scheduled' ELSE 'ready' END,
        version = new.version,
        args = new.args,
        priority = new.priority,
        run_at = new.due,
        sort_key = {schema}.sort_key(new.due, new.priority),
        attempt = 0,
        gate = CASE WHEN job.gate IS NOT NULL THEN '' END,
        reason = NULL,
        history = {schema}.grown(job.history, {schema}.note('replaced', clock.now, NULL, NULL))
    FROM new, clock
    WHERE job.id = new.id
    RETURNING job.queue, job.state, job.run_at
)
SELECT {schema}.ring(
    array_agg(DISTINCT queue) FILTER (WHERE state = 'ready'),
    bool_or(state <> 'ready' AND run_at < (SELECT now FROM clock) + make_interval(secs => :soon_seconds))
)
FROM replaced;

-- enqueue.unkey: gives back keys that were taken for jobs which are not stored after all.
DELETE FROM {schema}.unique_key
WHERE key = ANY (:keys::text[])
    AND NOT EXISTS (SELECT FROM {schema}.job WHERE job.id = unique_key.job);

-- enqueue.after: ready | scheduled -> blocked, in the transaction that stores them.
UPDATE {schema}.job
SET state = 'blocked',
    filed = 'blocked',
    reason = :reason
WHERE id = ANY (:ids::uuid[])
    AND state IN ('ready', 'scheduled');

-- enqueue.waits: what jobs wait for, also more of it, and that this is to be looked at. Locks: the rows of jobs that
-- were blocked before, FOR SHARE, so that none of them is made ready meanwhile.
WITH wait AS MATERIALIZED (
    SELECT job, key, is_enough
    FROM unnest(:jobs::uuid[], :keys::text[], :enough::boolean[]) AS wait (job, key, is_enough)
),
held AS MATERIALIZED (
    SELECT id
    FROM {schema}.job
    WHERE id IN (SELECT job FROM wait)
        AND state = 'blocked'
    ORDER BY id
    FOR SHARE
),
begun AS (
    INSERT INTO {schema}.waiting (job, key, is_enough)
    SELECT job, key, is_enough
    FROM wait
    WHERE job IN (SELECT id FROM held)
    ON CONFLICT (job, key) DO NOTHING
    RETURNING key
),
noted AS (
    INSERT INTO {schema}.recheck (key)
    SELECT DISTINCT key
    FROM begun
)
SELECT {schema}.ring(NULL, true)
FROM begun
LIMIT 1;

-- enqueue.kept: the final jobs that have these unique keys for a while yet. Read by the call that has taken the keys.
SELECT unique_kept.key, unique_kept.job::text
FROM {schema}.unique_kept
WHERE unique_kept.key = ANY (:keys::text[])
    AND unique_kept.until > coalesce(:now::timestamptz, clock_timestamp())
    AND EXISTS (SELECT FROM {schema}.archive WHERE archive.id = unique_kept.job);

-- enqueue.keep: jobs have their keys at least for so long.
INSERT INTO {schema}.unique_kept (key, job, until)
SELECT kept.key, kept.job, coalesce(:now::timestamptz, clock_timestamp()) + make_interval(secs => kept.seconds)
FROM unnest(:keys::text[], :jobs::uuid[], :seconds::double precision[]) AS kept (key, job, seconds)
ORDER BY kept.key COLLATE "C"
ON CONFLICT (key) DO UPDATE
SET job = excluded.job,
    until = excluded.until;

-- enqueue.take_over: running jobs, which are locked, leave their unique keys to others.
WITH taken AS MATERIALIZED (
    SELECT key, loser, winner
    FROM unnest(:keys::text[], :losers::uuid[], :winners::uuid[]) AS taken (key, loser, winner)
),
left_to AS (
    UPDATE {schema}.unique_key
    SET job = taken.winner
    FROM taken
    WHERE unique_key.key = taken.key
        AND unique_key.job = taken.loser
)
UPDATE {schema}.job
SET unique_key = NULL
FROM taken
WHERE job.id = taken.loser;
