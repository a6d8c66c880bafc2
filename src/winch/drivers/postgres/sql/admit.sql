-- admit: blocked -> ready, for jobs whose gate has room for them: the gate beside each id is the one that opens, and
-- a job that waits at another gate, for a signal or for other jobs stays as it is. Locks: the gates before it
-- (admit.lock_keys), then the job rows with SKIP LOCKED; the process that has one of them opens the gate too.
WITH admitted AS (
    UPDATE {schema}.job
    SET state = 'ready',
        filed = 'ready',
        gate = ''
    WHERE id = ANY (ARRAY(
        SELECT job.id
        FROM unnest(:ids::uuid[], :gates::text[]) AS chosen (id, gate)
        JOIN {schema}.job ON job.id = chosen.id
            AND job.gate = chosen.gate
            AND job.state = 'blocked'
        ORDER BY job.id
        FOR UPDATE OF job SKIP LOCKED
    ))
    RETURNING id, queue
)
SELECT count(*), (SELECT {schema}.ring(array_agg(DISTINCT queue), false) FROM admitted)
FROM admitted;

-- admit.begin: which of these queues have ready jobs with gates or a rule, the rule, and how many permits of its
-- concurrency are out (a hint: counted again under the lock). Locks: the session FOR KEY SHARE, as claim does;
-- nothing for one that is ended or unknown. A client that is stopped in the middle must not hold its session
-- for long, so the server ends its transaction.
WITH live AS MATERIALIZED (
    SELECT id
    FROM {schema}.session
    WHERE id = :session::uuid
        AND ended_at IS NULL
    FOR KEY SHARE
)
SELECT
    wanted.queue,
    queue.concurrency,
    coalesce(queue.is_strict, false),
    CASE WHEN queue.concurrency IS NOT NULL THEN (
        SELECT count(*) FROM {schema}.permit WHERE permit.gate = 'queue:' || wanted.queue
    ) END,
    set_config('lock_timeout', '4s', true),
    set_config('idle_in_transaction_session_timeout', '2s', true)
FROM live
CROSS JOIN unnest(:queues::text[]) AS wanted (queue)
LEFT JOIN {schema}.queue ON queue.name = wanted.queue
WHERE (
        queue.concurrency IS NOT NULL
        OR queue.is_strict
        OR EXISTS (
            SELECT
            FROM {schema}.job
            WHERE job.queue = wanted.queue AND job.filed = 'ready' AND job.state = 'ready' AND job.gate IS NOT NULL AND job.tenant IS NULL
        )
        OR EXISTS (
            SELECT
            FROM {schema}.job
            WHERE job.queue = wanted.queue AND job.filed = 'ready' AND job.state = 'ready' AND job.gate IS NOT NULL
                AND job.tenant IS NOT NULL
        )
    )
    AND queue.paused_at IS NULL;

-- admit.candidates: the first ready jobs of a queue, not locked: with gates, of each tenant (found by steps in the
-- index), and where the first plain ones stand among them.
WITH RECURSIVE tenants (tenant) AS (
    (
        SELECT job.tenant
        FROM {schema}.job
        WHERE job.queue = :queue
            AND job.filed = 'ready'
            AND job.state = 'ready'
            AND job.gate IS NOT NULL
            AND job.tenant IS NOT NULL
        ORDER BY job.tenant
        LIMIT 1
    )
    UNION ALL
    SELECT next.tenant
    FROM tenants
    CROSS JOIN LATERAL (
        SELECT job.tenant
        FROM {schema}.job
        WHERE job.queue = :queue
            AND job.filed = 'ready'
            AND job.state = 'ready'
            AND job.gate IS NOT NULL
            AND job.tenant IS NOT NULL
            AND job.tenant > tenants.tenant
        ORDER BY job.tenant
        LIMIT 1
    ) AS next
)
(
    SELECT id::text, sort_key, attempt, options, tenant, false, priority
    FROM {schema}.job
    WHERE queue = :queue
        AND filed = 'ready'
        AND state = 'ready'
        AND gate IS NOT NULL
        AND tenant IS NULL
        AND (:tasks::text[] IS NULL OR task = ANY (:tasks::text[]))
    ORDER BY queue, sort_key, id
    LIMIT :limit::bigint + :ahead::bigint
)
UNION ALL
(
    SELECT first.id::text, first.sort_key, first.attempt, first.options, first.tenant, false, first.priority
    FROM tenants
    CROSS JOIN LATERAL (
        SELECT job.id, job.sort_key, job.attempt, job.options, job.tenant, job.priority
        FROM {schema}.job
        WHERE job.queue = :queue
            AND job.filed = 'ready'
            AND job.state = 'ready'
            AND job.gate IS NOT NULL
            AND job.tenant = tenants.tenant
            AND (:tasks::text[] IS NULL OR job.task = ANY (:tasks::text[]))
        ORDER BY job.queue, job.tenant, job.sort_key, job.id
        LIMIT :limit::bigint + :spare::bigint
    ) AS first
)
UNION ALL
(
    SELECT id::text, sort_key, 0, NULL, NULL, true, priority
    FROM {schema}.job
    WHERE queue = :queue
        AND filed = 'ready'
        AND gate IS NULL
        AND state = 'ready'
        AND (:tasks::text[] IS NULL OR task = ANY (:tasks::text[]))
    ORDER BY queue, sort_key, id
    LIMIT :limit
);

-- admit.strict: the same for a queue of strict order. The priorities are found by steps in their index. Jobs of tenants
-- are read whole and sorted.
WITH RECURSIVE levels (priority) AS (
    (
        SELECT job.priority
        FROM {schema}.job
        WHERE job.queue = :queue AND job.filed = 'ready' AND job.state = 'ready' AND job.priority <> 0
        ORDER BY job.priority DESC
        LIMIT 1
    )
    UNION ALL
    SELECT next.priority
    FROM levels
    CROSS JOIN LATERAL (
        SELECT job.priority
        FROM {schema}.job
        WHERE job.queue = :queue AND job.filed = 'ready' AND job.state = 'ready' AND job.priority <> 0 AND job.priority < levels.priority
        ORDER BY job.priority DESC
        LIMIT 1
    ) AS next
)
(
    SELECT first.id::text, first.sort_key, first.attempt, first.options, first.tenant, first.is_plain, first.priority
    FROM levels
    CROSS JOIN LATERAL (
        SELECT job.id, job.sort_key, job.attempt, job.options, job.tenant, job.gate IS NULL AS is_plain, job.priority
        FROM {schema}.job
        WHERE job.queue = :queue
            AND job.filed = 'ready'
            AND job.state = 'ready'
            AND job.priority <> 0
            AND job.priority = levels.priority
            AND job.tenant IS NULL
            AND (:tasks::text[] IS NULL OR job.task = ANY (:tasks::text[]))
        ORDER BY job.queue, job.priority, job.sort_key, job.id
        LIMIT :limit::bigint + :ahead::bigint
    ) AS first
    ORDER BY first.priority DESC, first.sort_key, first.id
    LIMIT :limit::bigint + :ahead::bigint
)
UNION ALL
(
    SELECT id::text, sort_key, attempt, options, tenant, false, priority
    FROM {schema}.job
    WHERE queue = :queue
        AND filed = 'ready'
        AND state = 'ready'
        AND gate IS NOT NULL
        AND tenant IS NULL
        AND priority = 0
        AND (:tasks::text[] IS NULL OR task = ANY (:tasks::text[]))
    ORDER BY queue, sort_key, id
    LIMIT :limit::bigint + :ahead::bigint
)
UNION ALL
(
    SELECT id::text, sort_key, 0, NULL, NULL, true, priority
    FROM {schema}.job
    WHERE queue = :queue
        AND filed = 'ready'
        AND gate IS NULL
        AND state = 'ready'
        AND priority = 0
        AND (:tasks::text[] IS NULL OR task = ANY (:tasks::text[]))
    ORDER BY queue, sort_key, id
    LIMIT :limit
)
UNION ALL
(
    SELECT first.id::text, first.sort_key, first.attempt, first.options, first.tenant, false, first.priority
    FROM (
        SELECT
            job.id, job.sort_key, job.attempt, job.options, job.tenant, job.priority,
            row_number() OVER (PARTITION BY job.tenant ORDER BY job.priority DESC, job.sort_key, job.id) AS place
        FROM {schema}.job
        WHERE job.queue = :queue
            AND job.filed = 'ready'
            AND job.state = 'ready'
            AND job.gate IS NOT NULL
            AND job.tenant IS NOT NULL
            AND (:tasks::text[] IS NULL OR job.task = ANY (:tasks::text[]))
    ) AS first
    WHERE first.place <= :limit::bigint + :spare::bigint
);

-- admit.lock_keys: locks gates, sorted.
SELECT {schema}.lock_gates(:keys::text[]);

-- admit.lock: locks the gates that the ends of these claims may open, before any of their rows; returns what gates
-- the jobs have and when they were claimed.
SELECT job.id::text, job.options, job.claimed_at, (
    SELECT {schema}.lock_gates(:keys::text[] || ARRAY(
        SELECT permit.gate::text FROM {schema}.permit WHERE permit.job = ANY (:ids::uuid[])
        UNION
        SELECT 'fifo:' || fifo.fifo FROM {schema}.job AS fifo WHERE fifo.id = ANY (:ids::uuid[]) AND fifo.fifo IS NOT NULL
    ))
)
FROM {schema}.job
WHERE job.id = ANY (:ids::uuid[]);

-- admit.lock_running: the same for what this session runs, or what sessions that are not live run. Where none
-- has a permit nothing is locked.
SELECT {schema}.lock_gates(keys)
FROM (
    SELECT array_agg(DISTINCT permit.gate::text) AS keys
    FROM {schema}.permit
    JOIN {schema}.job ON job.id = permit.job
        AND job.state = 'running'
    WHERE job.session = :session::uuid
        OR (:session::uuid IS NULL AND NOT EXISTS (
            SELECT FROM {schema}.session WHERE session.id = job.session AND session.ended_at IS NULL
        ))
) AS held
WHERE keys IS NOT NULL;

-- admit.look: gates under their locks: what they remember, how much of them is out, whose turn it is, which job is first,
-- what is set by their names; and the store's time, which no earlier holder of the lock has seen later.
SELECT
    wanted.key,
    gate.state,
    {schema}.micros(gate.open_at),
    {schema}.gate_used(wanted.key),
    (SELECT permit.job::text FROM {schema}.permit WHERE permit.gate = wanted.key AND permit.token IS NULL),
    (
        SELECT job.id::text
        FROM {schema}.job
        WHERE job.fifo = wanted.fifo
        ORDER BY job.fifo, job.seq, job.id
        LIMIT 1
    ),
    limit_set.spec,
    {schema}.micros(coalesce(:now::timestamptz, clock_timestamp()))
FROM unnest(:keys::text[], :names::text[], :fifos::text[]) AS wanted (key, name, fifo)
LEFT JOIN {schema}.gate ON gate.key = wanted.key
LEFT JOIN {schema}.limit_set ON limit_set.name = wanted.name;

-- admit.take: ready -> running for jobs whose gates have let them through, ready -> blocked for those that are
-- held. Locks: the job rows with SKIP LOCKED, after the gates. A job that was taken or cancelled
-- meanwhile gets no permit.
-- In a queue with a rule (:is_ruled) plain jobs are taken so, too. With a concurrency (:queue_gate) each that is taken
-- gets a permit of it, and a plain one ends as jobs with gates do.
WITH kept AS (
    UPDATE {schema}.gate
    SET state = changed.state,
        open_at = to_timestamp(changed.open_at / 1000000.0)
    FROM json_to_recordset(:gates::json) AS changed (key text, state text, open_at bigint)
    WHERE gate.key = changed.key
),
held AS (
    UPDATE {schema}.job
    SET state = 'blocked',
        filed = 'blocked',
        gate = waits.gate
    FROM json_to_recordset(:held::json) AS waits (id uuid, gate text)
    WHERE job.id = waits.id
        AND job.id = ANY (ARRAY(
            SELECT locked.id
            FROM {schema}.job AS locked
            WHERE locked.id = ANY (:held_ids::uuid[])
                AND locked.state = 'ready'
                AND locked.gate IS NOT NULL
            ORDER BY locked.id
            FOR UPDATE SKIP LOCKED
        ))
),
taken AS (
    UPDATE {schema}.job
    SET state = 'running',
        filed = 'running',
        gate = CASE WHEN :queue_gate::text IS NULL THEN gate ELSE 'queue' END,
        attempt = least(attempt, 2147483646) + 1, -- as claim does
        fence = greatest(fence + 1, :at::bigint),
        token = :token::uuid,
        session = :session::uuid,
        claimed_at = to_timestamp(:at::bigint / 1000000.0),
        progress = NULL,
        log = NULL
    WHERE id = ANY (ARRAY(
        SELECT locked.id
        FROM {schema}.job AS locked
        WHERE locked.id = ANY (:ids::uuid[])
            AND locked.state = 'ready'
            AND (locked.gate IS NOT NULL OR :is_ruled::boolean)
        ORDER BY locked.id
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING *
),
granted AS (
    INSERT INTO {schema}.permit (gate, job, token, weight)
    SELECT given.gate, given.job, CASE WHEN NOT given.is_turn THEN :token::uuid END, given.weight
    FROM json_to_recordset(:permits::json) AS given (gate text, job uuid, weight integer, is_turn boolean)
    WHERE given.job IN (SELECT id FROM taken)
    UNION ALL
    SELECT :queue_gate::text, id, :token::uuid, 1
    FROM taken
    WHERE :queue_gate::text IS NOT NULL
    ON CONFLICT (gate, job) DO UPDATE
    SET token = excluded.token,
        weight = excluded.weight,
        session = NULL,
        at_once = NULL
)
SELECT
    sort_key, id::text, queue, task, args, attempt, fence, created_at, run_at, claimed_at, version, is_suspect,
    expires_at, headers, options, checkpoint
FROM taken;

-- admit.ring: the process that opens gates may have to do so before its sleep ends.
SELECT {schema}.ring(NULL, true);

-- admit.keep: what gates remember from now on.
UPDATE {schema}.gate
SET state = changed.state,
    open_at = to_timestamp(changed.open_at / 1000000.0)
FROM json_to_recordset(:gates::json) AS changed (key text, state text, open_at bigint)
WHERE gate.key = changed.key;

-- admit.leave_turn: takes the turns of jobs that are not final. Their gates are locked (admit.lock).
DELETE FROM {schema}.permit
WHERE job = ANY (:ids::uuid[])
    AND token IS NULL
RETURNING gate::text;

-- admit.waiting: the first jobs that wait at each of these gates.
SELECT wanted.key, first.id::text, first.options
FROM unnest(:keys::text[]) AS wanted (key)
CROSS JOIN LATERAL (
    SELECT job.id, job.options, job.sort_key
    FROM {schema}.job
    WHERE job.filed = 'blocked'
        AND job.gate = wanted.key
    ORDER BY job.gate, job.sort_key, job.id
    LIMIT :limit
) AS first
ORDER BY wanted.key, first.sort_key, first.id;

-- admit.due: gates whose moment has come.
SELECT key
FROM {schema}.gate
WHERE open_at <= coalesce(:now::timestamptz, clock_timestamp())
ORDER BY open_at
LIMIT :limit;

-- admit.next: when the next one comes, and what time it is.
SELECT min(open_at), coalesce(:now::timestamptz, clock_timestamp())
FROM {schema}.gate
WHERE open_at IS NOT NULL;

-- admit.all: every gate at which jobs wait, found by steps in the index. Jobs that wait for a signal or for other
-- jobs are blocked too, at no gate.
WITH RECURSIVE waited (key) AS (
    (SELECT gate FROM {schema}.job WHERE filed = 'blocked' AND gate > '' ORDER BY gate LIMIT 1)
    UNION ALL
    SELECT next.gate
    FROM waited
    CROSS JOIN LATERAL (
        SELECT job.gate
        FROM {schema}.job
        WHERE job.filed = 'blocked'
            AND job.gate > waited.key
        ORDER BY job.gate
        LIMIT 1
    ) AS next
)
SELECT key
FROM waited
LIMIT :limit;

-- admit.forget: turns of jobs that are gone for good.
DELETE FROM {schema}.permit
WHERE NOT EXISTS (SELECT FROM {schema}.job WHERE job.id = permit.job)
    AND NOT EXISTS (SELECT FROM {schema}.archive WHERE archive.id = permit.job);

-- admit.tidy: removes gates without state, holders and waiting jobs, among the next of them in the order of their keys: a look
-- costs the same however many there are. Locks: their rows with SKIP LOCKED. Returns the last key, NULL after the last gate.
WITH slice AS MATERIALIZED (
    SELECT gate.key, gate.state IS NULL AND gate.open_at IS NULL AS is_idle
    FROM {schema}.gate
    WHERE gate.key > :after
    ORDER BY gate.key
    LIMIT :limit
),
gone AS (
    DELETE FROM {schema}.gate
    WHERE key = ANY (ARRAY(
        SELECT idle.key
        FROM {schema}.gate AS idle
        WHERE idle.key = ANY (ARRAY(SELECT slice.key FROM slice WHERE slice.is_idle))
            AND idle.state IS NULL
            AND idle.open_at IS NULL
            AND NOT EXISTS (SELECT FROM {schema}.permit WHERE permit.gate = idle.key)
            AND NOT EXISTS (SELECT FROM {schema}.job WHERE job.filed = 'blocked' AND job.gate = idle.key)
        FOR UPDATE SKIP LOCKED
    ))
)
SELECT max(slice.key)
FROM slice
HAVING count(*) = :limit;

-- admit.holders: the holders of a gate's permits, and how many wait at it before this job.
SELECT
    ARRAY(SELECT permit.job::text FROM {schema}.permit WHERE permit.gate = :key ORDER BY permit.job LIMIT :limit),
    (
        SELECT count(*)
        FROM {schema}.job AS other
        JOIN {schema}.job AS mine ON mine.id = :id::uuid
        WHERE other.filed = 'blocked'
            AND other.gate = :key
            AND CASE
                WHEN mine.fifo IS NULL THEN (other.sort_key, other.id) < (mine.sort_key, mine.id)
                ELSE (other.seq, other.id) < (mine.seq, mine.id)
            END
    );
