-- set_queue: what claims of this queue read from now on. Locks: set_queue.begin and the queue's gate come before.
INSERT INTO {schema}.queue (name, concurrency, is_strict)
VALUES (:queue, :concurrency::integer, :is_strict)
ON CONFLICT (name) DO UPDATE
SET concurrency = excluded.concurrency,
    is_strict = excluded.is_strict;

-- set_queue.wait: how long to wait for claims that are on their way, which wait behind this call.
SELECT set_config('lock_timeout', '5s', true);

-- set_queue.begin: waits for all claims that may have read another rule. A claim locks its session's row and with it
-- this table, before it has its snapshot; so one that comes later reads what is committed here.
LOCK TABLE {schema}.session IN EXCLUSIVE MODE;

-- set_queue.count: jobs of the queue that run count from now on, and end as jobs with gates do. Locks: their rows.
-- Jobs that have a permit already are not changed: the transaction that ends them holds the gate or waits for it.
WITH counted AS (
    UPDATE {schema}.job
    SET gate = 'queue',
        filed = 'running'
    WHERE id = ANY (ARRAY(
        SELECT claimed.id
        FROM {schema}.claimed
        WHERE NOT EXISTS (
            SELECT FROM {schema}.permit WHERE permit.gate = 'queue:' || :queue::text AND permit.job = claimed.id
        )
    ))
        AND queue = :queue
        AND state = 'running'
    RETURNING id, token
)
INSERT INTO {schema}.permit (gate, job, token, weight)
SELECT 'queue:' || :queue::text, id, token, 1
FROM counted
ON CONFLICT (gate, job) DO NOTHING;

-- set_queue.ring: workers look again.
SELECT {schema}.ring(ARRAY[:queue::text], false);
