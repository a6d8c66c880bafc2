-- admit: blocked -> ready, for jobs whose gate has room for them. :chosen is a JSON object of id -> opened gate;
-- a job that waits at another gate, for a signal or for other jobs stays as it is.
UPDATE winch_job
SET state = 'ready',
    gate = '',
    changed_at = :now
FROM json_each(:chosen) AS chosen
WHERE winch_job.id = chosen.key
    AND winch_job.state = 'blocked'
    AND winch_job.gate = chosen.value;

-- admit.queues: how many jobs of each queue these are, as a JSON object.
SELECT json_group_object(queue, jobs)
FROM (
    SELECT winch_job.queue, count(*) AS jobs
    FROM json_each(:chosen) AS chosen
    JOIN winch_job ON winch_job.id = chosen.key
    WHERE winch_job.state = 'blocked'
        AND winch_job.gate = chosen.value
    GROUP BY winch_job.queue
);

-- admit.candidates: the first ready jobs with gates of a queue, without those of tenants. Nothing for a session
-- that is ended or unknown, nothing from a paused queue. In one row, as JSON: see claim.
SELECT json_group_array(json_array(id, sort_key, attempt, options, tenant, priority))
FROM (
    SELECT id, sort_key, attempt, options, tenant, priority
    FROM winch_job
    WHERE state = 'ready'
        AND gate IS NOT NULL
        AND queue = :queue
        AND tenant IS NULL
        AND (NOT :is_strict OR priority = 0)
        AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
        AND EXISTS (SELECT 1 FROM winch_session WHERE id = :session AND ended_at IS NULL)
        AND NOT EXISTS (SELECT 1 FROM winch_queue WHERE name = :queue AND paused_at IS NOT NULL)
    ORDER BY sort_key, id
    LIMIT :limit
);

-- admit.tenants: the tenants of the ready jobs of a queue, found by steps in the index. Nothing for a session that is
-- ended or unknown, nothing from a paused queue.
WITH RECURSIVE tenants (tenant) AS (
    SELECT min(tenant)
    FROM winch_job
    WHERE state = 'ready'
        AND gate IS NOT NULL
        AND queue = :queue
        AND tenant > ''
        AND EXISTS (SELECT 1 FROM winch_session WHERE id = :session AND ended_at IS NULL)
        AND NOT EXISTS (SELECT 1 FROM winch_queue WHERE name = :queue AND paused_at IS NOT NULL)
    UNION ALL
    SELECT (
        SELECT min(job.tenant)
        FROM winch_job AS job
        WHERE job.state = 'ready'
            AND job.gate IS NOT NULL
            AND job.queue = :queue
            AND job.tenant > tenants.tenant
    )
    FROM tenants
    WHERE tenants.tenant IS NOT NULL
)
SELECT json_group_array(tenant)
FROM tenants
WHERE tenant IS NOT NULL;

-- admit.of_tenants: the first ready jobs of each of these tenants, as a JSON list of lists.
SELECT json_group_array(json((
    SELECT json_group_array(json_array(id, sort_key, attempt, options, tenant, priority))
    FROM (
        SELECT id, sort_key, attempt, options, tenant, priority
        FROM winch_job
        WHERE state = 'ready'
            AND gate IS NOT NULL
            AND queue = :queue
            AND tenant = wanted.value
            AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
        ORDER BY sort_key, id
        LIMIT :limit
    )
)))
FROM json_each(:tenants) AS wanted;

-- admit.strict_tenants: the same in a queue of strict order. It reads and sorts all ready jobs of each tenant.
SELECT json_group_array(json_array(id, sort_key, attempt, options, tenant, priority))
FROM (
    SELECT
        id, sort_key, attempt, options, tenant, priority,
        row_number() OVER (PARTITION BY tenant ORDER BY priority DESC, sort_key, id) AS place
    FROM winch_job
    WHERE state = 'ready'
        AND gate IS NOT NULL
        AND queue = :queue
        AND tenant > ''
        AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
        AND EXISTS (SELECT 1 FROM winch_session WHERE id = :session AND ended_at IS NULL)
        AND NOT EXISTS (SELECT 1 FROM winch_queue WHERE name = :queue AND paused_at IS NOT NULL)
)
WHERE place <= :limit;

-- admit.levels: the priorities other than 0 that ready jobs of a queue have, the highest first; found by steps in
-- the index.
WITH RECURSIVE levels (priority) AS (
    SELECT max(priority) FROM winch_job WHERE state = 'ready' AND priority <> 0 AND queue = :queue
    UNION ALL
    SELECT (
        SELECT max(job.priority)
        FROM winch_job AS job
        WHERE job.state = 'ready' AND job.priority <> 0 AND job.queue = :queue AND job.priority < levels.priority
    )
    FROM levels
    WHERE levels.priority IS NOT NULL
)
SELECT priority
FROM levels
WHERE priority IS NOT NULL;

-- admit.level: the first ready jobs of one priority, with gates or without, but not those of tenants.
SELECT json_group_array(json_array(id, sort_key, attempt, options, tenant, priority))
FROM (
    SELECT id, sort_key, attempt, options, tenant, priority
    FROM winch_job
    WHERE state = 'ready'
        AND priority <> 0
        AND queue = :queue
        AND priority = :priority
        AND tenant IS NULL
        AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
        AND EXISTS (SELECT 1 FROM winch_session WHERE id = :session AND ended_at IS NULL)
        AND NOT EXISTS (SELECT 1 FROM winch_queue WHERE name = :queue AND paused_at IS NOT NULL)
    ORDER BY sort_key, id
    LIMIT :limit
);

-- admit.ruled: the first plain jobs of a queue with a rule, as candidates; in strict order those of priority 0.
SELECT json_group_array(json_array(id, sort_key, attempt, options, tenant, priority))
FROM (
    SELECT id, sort_key, attempt, options, tenant, priority
    FROM winch_job
    WHERE state = 'ready'
        AND gate IS NULL
        AND queue = :queue
        AND (NOT :is_strict OR priority = 0)
        AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
        AND EXISTS (SELECT 1 FROM winch_session WHERE id = :session AND ended_at IS NULL)
        AND NOT EXISTS (SELECT 1 FROM winch_queue WHERE name = :queue AND paused_at IS NOT NULL)
    ORDER BY sort_key, id
    LIMIT :limit
);

-- admit.plain: where the first plain jobs of a queue stand among them.
SELECT sort_key, id
FROM winch_job
WHERE state = 'ready'
    AND gate IS NULL
    AND queue = :queue
    AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
ORDER BY sort_key, id
LIMIT :limit;

-- admit.look: what gates remember, how much of them is out, what a session that runs so many jobs at once has of them,
-- whose turn it is, and the first live member of a FIFO key. In one row, as JSON: see claim.
WITH part AS (
    SELECT
        gate, sum(weight) AS weight, max(weight) AS heaviest,
        min(sum(weight), coalesce(at_once * max(weight), sum(weight))) AS used,
        session = :session AND at_once = :at_once AS is_own,
        max(CASE WHEN token IS NULL THEN job END) AS turn
    FROM winch_permit
    WHERE gate IN (SELECT value FROM json_each(:keys))
    GROUP BY gate, session, at_once
),
held AS MATERIALIZED (
    SELECT
        gate, sum(used) AS used, max(CASE WHEN is_own THEN weight END) AS own,
        max(CASE WHEN is_own THEN heaviest END) AS heaviest, max(turn) AS turn
    FROM part
    GROUP BY gate
)
SELECT json_group_array(json_array(
    wanted.value,
    winch_gate.state,
    winch_gate.open_at,
    coalesce(held.used, 0),
    held.own,
    held.heaviest,
    held.turn,
    CASE
        WHEN substr(wanted.value, 1, 5) = 'fifo:' THEN (
            SELECT id
            FROM winch_job
            WHERE fifo = substr(wanted.value, 6)
            ORDER BY coalesce(seq, created_at), id
            LIMIT 1
        )
    END
))
FROM json_each(:keys) AS wanted
LEFT JOIN winch_gate ON winch_gate.key = wanted.value
LEFT JOIN held ON held.gate = wanted.value;

-- admit.specs: what is set by these names.
SELECT name, spec
FROM winch_limit
WHERE name IN (SELECT value FROM json_each(:names));

-- admit.take: the jobs whose gates have let them through, as they are before claim.take takes them; as claim has them.
SELECT json_group_array(json_array(
    sort_key, id, task, version, args, queue, attempt, fence, created_at, run_at, is_suspect, expires_at,
    headers, options, checkpoint
))
FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids));

-- admit.hold: ready -> blocked, at gates that are closed. :held is a JSON object of id -> gate.
UPDATE winch_job
SET state = 'blocked',
    gate = held.value,
    changed_at = :now
FROM json_each(:held) AS held
WHERE winch_job.id = held.key;

-- admit.permit: lets claims run, or notes whose turn it is. :permits is a JSON list of [gate, job, token, weight, at_once].
INSERT INTO winch_permit (gate, job, token, weight, session, at_once)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, :session, value ->> 4
FROM json_each(:permits)
WHERE true
ON CONFLICT (gate, job) DO UPDATE
SET token = excluded.token,
    weight = excluded.weight,
    session = excluded.session,
    at_once = excluded.at_once;

-- admit.keep: what a gate remembers from now on.
INSERT INTO winch_gate (key, state, open_at)
VALUES (:key, :state, :open_at)
ON CONFLICT (key) DO UPDATE SET state = excluded.state, open_at = excluded.open_at;

-- admit.freed: what these jobs have of each gate, as a JSON object: permits of claims that have ended, and the turns of
-- jobs that are final.
SELECT json_group_object(gate, weight)
FROM (
    SELECT gate, sum(max(weight, 1)) AS weight
    FROM winch_permit
    WHERE job IN (SELECT value FROM json_each(:ids))
        AND (token IS NOT NULL OR job IN (SELECT value FROM json_each(:final)))
    GROUP BY gate
);

-- admit.leave: takes it back.
DELETE FROM winch_permit
WHERE job IN (SELECT value FROM json_each(:ids))
    AND (token IS NOT NULL OR job IN (SELECT value FROM json_each(:final)));

-- admit.leave_queue: takes back what ended claims of plain jobs had of their queues.
DELETE FROM winch_permit
WHERE job IN (SELECT value FROM json_each(:ids))
    AND token IS NOT NULL
RETURNING gate;

-- admit.leave_turn: takes the turns of jobs that are not final.
DELETE FROM winch_permit
WHERE job IN (SELECT value FROM json_each(:ids))
    AND token IS NULL
RETURNING gate;

-- admit.waiting: the first jobs that wait at a gate.
SELECT id, options
FROM winch_job
WHERE state = 'blocked'
    AND gate = :key
ORDER BY sort_key, id
LIMIT :limit;

-- admit.first: the first jobs that wait at each of these gates, and at which: a JSON object.
SELECT json_group_object(job.id, wanted.value)
FROM json_each(:keys) AS wanted
JOIN winch_job AS job ON job.id IN (
    SELECT id
    FROM winch_job
    WHERE state = 'blocked'
        AND gate = wanted.value
    ORDER BY sort_key, id
    LIMIT :limit
);

-- admit.due: gates whose moment has come.
SELECT key
FROM winch_gate
WHERE open_at <= :now
ORDER BY key
LIMIT :limit;

-- admit.next: when the next one comes.
SELECT min(open_at)
FROM winch_gate
WHERE open_at IS NOT NULL;

-- admit.all: every gate at which jobs wait, found by steps in the index.
WITH RECURSIVE gates (key) AS (
    SELECT min(gate) FROM winch_job WHERE state = 'blocked' AND gate > ''
    UNION ALL
    SELECT (SELECT min(job.gate) FROM winch_job AS job WHERE job.state = 'blocked' AND job.gate > gates.key)
    FROM gates
    WHERE gates.key IS NOT NULL
)
SELECT key
FROM gates
WHERE key IS NOT NULL;

-- admit.forget: turns of jobs that are gone for good, and gates that need not be remembered.
DELETE FROM winch_permit
WHERE NOT EXISTS (SELECT 1 FROM winch_job WHERE id = winch_permit.job)
    AND NOT EXISTS (SELECT 1 FROM winch_archive WHERE id = winch_permit.job);

-- admit.holders: the holders of a gate's permits.
SELECT job
FROM winch_permit
WHERE gate = :key
ORDER BY job
LIMIT :limit;

-- admit.ahead: how many wait at the same gate before this job.
SELECT count(*)
FROM winch_job AS other
JOIN winch_job AS mine ON mine.id = :id
WHERE other.state = 'blocked'
    AND other.gate = mine.gate
    AND CASE
        WHEN mine.fifo IS NULL THEN (other.sort_key, other.id) < (mine.sort_key, mine.id)
        ELSE (coalesce(other.seq, other.created_at), other.id) < (coalesce(mine.seq, mine.created_at), mine.id)
    END;
