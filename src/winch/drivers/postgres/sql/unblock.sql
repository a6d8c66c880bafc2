-- unblock: whether there is anything to do, and when the next wait is over.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
)
SELECT
    now,
    EXISTS (SELECT FROM {schema}.recheck)
        OR EXISTS (SELECT FROM {schema}.waiting WHERE until <= clock.now),
    (SELECT min(until) FROM {schema}.waiting WHERE until > clock.now)
FROM clock;

-- unblock.keys: takes up keys that were written down to be looked at again. Locks: these rows, SKIP LOCKED. What
-- they were written with is committed, so every look in a later statement sees it.
DELETE FROM {schema}.recheck
WHERE seq = ANY (ARRAY(
    SELECT seq
    FROM {schema}.recheck
    ORDER BY seq
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
))
RETURNING key;

-- unblock.waiters: which of these keys have come, and which jobs wait for them or have waited long enough. A signal has
-- come that is not taken; a job has when it is not live, and jobs together when none of them is. Whether a job is
-- dead is asked by unblock.dead, where a job waits for that: only to plan a look into the archive, with all its
-- partitions, costs ten times what the rest of this does.
SELECT waiting.job::text, waiting.key
FROM {schema}.waiting
WHERE waiting.key = ANY (:keys::text[])
    AND CASE
        WHEN starts_with(waiting.key, 'signal:') THEN EXISTS (
            SELECT FROM {schema}.signal
            WHERE signal.name = substr(waiting.key, 8) AND signal.taken_by IS NULL
        )
        WHEN starts_with(waiting.key, 'job:') THEN NOT EXISTS (
            SELECT FROM {schema}.job
            WHERE job.id = substr(waiting.key, 5)::uuid
        )
        WHEN starts_with(waiting.key, 'all:') THEN (
            -- From the end: they are run in the order of their ids, and where many have ended the index still has
            -- the places of their rows at the beginning.
            SELECT job.id
            FROM {schema}.job
            WHERE job.id BETWEEN (substr(waiting.key, 5) || '000000')::uuid
                AND (substr(waiting.key, 5) || 'ffffff')::uuid
            ORDER BY job.id DESC
            LIMIT 1
        ) IS NULL
        ELSE starts_with(waiting.key, 'dead:')
    END
UNION ALL
(
    SELECT waiting.job::text, NULL
    FROM {schema}.waiting
    WHERE waiting.until <= coalesce(:now::timestamptz, clock_timestamp())
    LIMIT :limit
);

-- unblock.dead: which of these jobs are dead.
SELECT id::text
FROM {schema}.archive
WHERE id = ANY (:ids::uuid[])
    AND state = 'dead';

-- unblock.lock: the jobs that wait. Locks: their rows, by id: of two calls that look at different keys of one job the second
-- sees what the first has left.
SELECT id::text
FROM {schema}.job
WHERE id = ANY (:ids::uuid[])
    AND state = 'blocked'
ORDER BY id
FOR UPDATE;

-- unblock.ready: blocked -> ready, where one that is enough has come, or all others, or the time is over. What has
-- come goes, and with a job all that it waited for.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
came AS MATERIALIZED (
    SELECT job, key
    FROM unnest(:jobs::uuid[], :keys::text[]) AS came (job, key)
),
standing AS MATERIALIZED (
    -- Each look ends at the first row it finds: a callback may wait for very many.
    SELECT
        waiter.job,
        waiter.job = ANY (:due::uuid[])
        OR EXISTS (
            SELECT
            FROM came
            JOIN {schema}.waiting ON waiting.job = came.job AND waiting.key = came.key
            WHERE came.job = waiter.job
                AND waiting.is_enough
        )
        OR (
            EXISTS (
                SELECT
                FROM came
                JOIN {schema}.waiting ON waiting.job = came.job AND waiting.key = came.key
                WHERE came.job = waiter.job
            )
            AND NOT EXISTS (
                SELECT
                FROM {schema}.waiting
                WHERE waiting.job = waiter.job
                    AND NOT waiting.is_enough
                    AND NOT EXISTS (SELECT FROM came WHERE came.job = waiting.job AND came.key = waiting.key)
            )
        ) AS is_ready
    FROM unnest(:locked::uuid[]) AS waiter (job)
),
gone AS (
    DELETE FROM {schema}.waiting
    USING standing
    WHERE waiting.job = standing.job
        AND standing.is_ready
),
seen AS (
    DELETE FROM {schema}.waiting
    USING came, standing
    WHERE waiting.job = came.job
        AND waiting.key = came.key
        AND standing.job = came.job
        AND NOT standing.is_ready
),
ready AS (
    UPDATE {schema}.job
    SET state = 'ready',
        filed = 'ready',
        run_at = clock.now,
        sort_key = {schema}.sort_key(clock.now, job.priority),
        reason = NULL
    FROM standing, clock
    WHERE job.id = standing.job
        AND standing.is_ready
    RETURNING job.queue
)
SELECT (SELECT count(*) FROM ready), (SELECT {schema}.ring(array_agg(DISTINCT queue), false) FROM ready);

-- unblock.stale: what jobs waited for that are not blocked any more.
DELETE FROM {schema}.waiting
WHERE job = ANY (:ids::uuid[])
    AND NOT EXISTS (SELECT FROM {schema}.job WHERE job.id = waiting.job AND job.state = 'blocked');
