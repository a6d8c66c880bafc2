-- explain: the moment, the queue's pause, how many ready jobs stand before this one (counted up to :most of each
-- kind, which has an index of its own), and how many live sessions serve the queue and know the task.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
mine AS MATERIALIZED (
    SELECT id, queue, sort_key
    FROM {schema}.job
    WHERE id = :id::uuid
        AND state = 'ready'
)
SELECT
    clock.now,
    (SELECT paused_at FROM {schema}.queue WHERE name = :queue),
    (SELECT pause_reason FROM {schema}.queue WHERE name = :queue AND paused_at IS NOT NULL),
    (
        SELECT count(*)
        FROM (
            SELECT
            FROM {schema}.job AS other
            WHERE other.filed = 'ready'
                AND other.gate IS NULL
                AND other.state = 'ready'
                AND other.queue = (SELECT queue FROM mine)
                AND (other.sort_key, other.id) < ((SELECT sort_key FROM mine), (SELECT id FROM mine))
            LIMIT :most
        ) AS line
    ) + (
        SELECT count(*)
        FROM (
            SELECT
            FROM {schema}.job AS other
            WHERE other.filed = 'ready'
                AND other.state = 'ready'
                AND other.gate IS NOT NULL
                AND other.tenant IS NULL
                AND other.queue = (SELECT queue FROM mine)
                AND (other.sort_key, other.id) < ((SELECT sort_key FROM mine), (SELECT id FROM mine))
            LIMIT :most
        ) AS line
    ) + (
        SELECT count(*)
        FROM (
            SELECT
            FROM {schema}.job AS other
            WHERE other.filed = 'ready'
                AND other.state = 'ready'
                AND other.gate IS NOT NULL
                AND other.tenant IS NOT NULL
                AND other.queue = (SELECT queue FROM mine)
                AND (other.sort_key, other.id) < ((SELECT sort_key FROM mine), (SELECT id FROM mine))
            LIMIT :most
        ) AS line
    ),
    count(session.id),
    count(session.id) FILTER (WHERE :task = ANY (session.tasks))
FROM clock
LEFT JOIN {schema}.session ON session.ended_at IS NULL
    AND :queue = ANY (session.queues)
GROUP BY clock.now;

-- explain.session: the session that claimed the job last.
SELECT
    id::text, worker, host, pid, release, queues, tasks, slots, started_at, lease_until, beats,
    (
        SELECT count(*)
        FROM {schema}.claimed
        WHERE claimed.session = session.id
    ),
    ended_at, end_reason, supervisor, labels, queue_limits
FROM {schema}.session
WHERE id = :session::uuid;

-- explain.rule: what claims read of the queue, how many permits of its concurrency are out, and some that hold them.
SELECT
    concurrency, is_strict,
    (SELECT count(*) FROM {schema}.permit WHERE permit.gate = 'queue:' || :queue),
    ARRAY(
        SELECT permit.job::text FROM {schema}.permit WHERE permit.gate = 'queue:' || :queue ORDER BY permit.job LIMIT :most
    )
FROM {schema}.queue
WHERE name = :queue
    AND (concurrency IS NOT NULL OR is_strict);

-- explain.strict: how many ready jobs stand before this one in a queue of strict order.
SELECT count(*)
FROM (
    SELECT
    FROM {schema}.job AS mine
    JOIN {schema}.job AS other ON other.queue = mine.queue
        AND other.filed = 'ready'
        AND other.state = 'ready'
        AND (-other.priority, other.sort_key, other.id) < (-mine.priority, mine.sort_key, mine.id)
    WHERE mine.id = :id::uuid
    LIMIT :most
) AS line;
