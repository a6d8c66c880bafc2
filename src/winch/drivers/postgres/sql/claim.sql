-- claim: ready -> running, for plain jobs; admit.take is for those with gates.
-- Locks: the session FOR KEY SHARE (rescue and end_session conflict, a beat does not), then jobs in order with
-- SKIP LOCKED. A session that is ended or unknown gets nothing; that and the queue's pause are looked at
-- once for each queue, not for each job. The queues are walked in the order given, and no more is locked
-- than is returned. By ctid: a join would hash the whole table.
-- Where a queue's walk begins: low_water.py.
-- A claim by the hundred (:is_batch) leaves its jobs where the index of ready ones has them and writes one row
-- that names them all: no index is written to, and the rows stay in their pages. Their worker will be done with
-- them in a moment; what is not, rescue.file files later. Small claims are of longer jobs, which would be walked
-- over for as long as they run.
-- A wary claim (:is_wary) takes nothing where a ready job of its queues has gates or one of them has a rule: those go the
-- long way, and a claim that would take them too sends this first, because mostly there are none. No claim of plain jobs takes from
-- a queue with a rule. What set_queue waits for is the lock of the table that FOR KEY SHARE takes: a statement has it
-- before it has its snapshot, so it sees every rule that was set before.
-- The number of an attempt stops where its type ends: one job that has failed so often must not stop its queue.
-- RETURNING has no order: the caller sorts by queue, sort_key and id. It knows the queue where it named one.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
live AS MATERIALIZED (
    SELECT id
    FROM {schema}.session
    WHERE id = :session::uuid
        AND ended_at IS NULL
    FOR KEY SHARE
),
chosen AS MATERIALIZED (
    SELECT array_agg(first.place) AS places, array_agg(first.id) AS ids
    FROM (
        SELECT ready.place, ready.id
        FROM unnest(:queues::text[], :starts::bigint[], :start_ids::uuid[]) AS wanted (queue, start, start_id)
        CROSS JOIN LATERAL (
            SELECT job.ctid AS place, job.id
            FROM {schema}.job
            WHERE job.queue = wanted.queue
                AND (job.sort_key, job.id) >= (wanted.start, wanted.start_id)
                AND job.filed = 'ready'
                AND job.gate IS NULL
                AND job.state = 'ready'
                AND (:tasks::text[] IS NULL OR job.task = ANY (:tasks::text[]))
                AND (
                    SELECT queue.paused_at IS NOT NULL OR queue.concurrency IS NOT NULL OR queue.is_strict
                    FROM {schema}.queue
                    WHERE queue.name = wanted.queue
                ) IS NOT TRUE
                AND EXISTS (SELECT FROM live)
                AND (
                    NOT :is_wary::boolean
                    OR NOT EXISTS (
                        SELECT
                        FROM {schema}.job AS gated
                        WHERE gated.queue = ANY (:queues::text[])
                            AND gated.filed = 'ready'
                            AND gated.state = 'ready'
                            AND gated.gate IS NOT NULL
                            AND gated.tenant IS NULL
                    )
                    AND NOT EXISTS (
                        SELECT
                        FROM {schema}.job AS gated
                        WHERE gated.queue = ANY (:queues::text[])
                            AND gated.filed = 'ready'
                            AND gated.state = 'ready'
                            AND gated.gate IS NOT NULL
                            AND gated.tenant IS NOT NULL
                    )
                    AND NOT EXISTS (
                        SELECT
                        FROM {schema}.queue
                        WHERE queue.name = ANY (:queues::text[])
                            AND (queue.concurrency IS NOT NULL OR queue.is_strict)
                    )
                )
            ORDER BY job.queue, job.sort_key, job.id
            LIMIT :limit
            FOR UPDATE SKIP LOCKED
        ) AS ready
        LIMIT :limit
    ) AS first
),
leased AS (
    INSERT INTO {schema}.lease (token, session, claimed_at, unended, ids)
    SELECT :token::uuid, :session::uuid, clock.now, cardinality(chosen.ids), chosen.ids
    FROM chosen, clock
    WHERE :is_batch::boolean
        AND chosen.ids IS NOT NULL
    ON CONFLICT (token) DO UPDATE -- a claim of jobs with gates sends several of these
    SET unended = lease.unended + excluded.unended,
        ids = lease.ids || excluded.ids
)
UPDATE {schema}.job
SET state = 'running',
    filed = CASE WHEN :is_batch::boolean THEN filed ELSE 'running' END,
    attempt = least(attempt, 2147483646) + 1,
    fence = greatest(fence + 1, (SELECT {schema}.micros(now) FROM clock)),
    token = :token::uuid,
    session = :session::uuid,
    claimed_at = (SELECT now FROM clock),
    progress = NULL,
    log = NULL
WHERE ctid = ANY ((SELECT places FROM chosen)::tid[])
RETURNING
    sort_key, id::text, CASE WHEN cardinality(:queues::text[]) > 1 THEN queue END, task, args, attempt, fence,
    created_at, run_at, claimed_at, version, is_suspect, expires_at, headers, options, checkpoint;

-- claim.few: the wary claim of a worker that waits, of a few jobs from one queue: the same locks in the same order,
-- the session first, and the same rows. Parts that such a claim does not use cost it a tenth of the server's time
-- even so: each is set up for every statement.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
)
UPDATE {schema}.job
SET state = 'running',
    filed = 'running',
    attempt = least(attempt, 2147483646) + 1,
    fence = greatest(fence + 1, (SELECT {schema}.micros(now) FROM clock)),
    token = :token::uuid,
    session = :session::uuid,
    claimed_at = (SELECT now FROM clock),
    progress = NULL,
    log = NULL
WHERE ctid = ANY (ARRAY(
    SELECT job.ctid
    FROM {schema}.job
    WHERE job.queue = :queue::text
        AND job.filed = 'ready'
        AND job.gate IS NULL
        AND job.state = 'ready'
        AND (:tasks::text[] IS NULL OR job.task = ANY (:tasks::text[]))
        AND EXISTS (
            SELECT
            FROM {schema}.session
            WHERE id = :session::uuid
                AND ended_at IS NULL
            FOR KEY SHARE
        )
        AND (
            SELECT queue.paused_at IS NOT NULL OR queue.concurrency IS NOT NULL OR queue.is_strict
            FROM {schema}.queue
            WHERE queue.name = :queue::text
        ) IS NOT TRUE
        AND NOT EXISTS (
            SELECT
            FROM {schema}.job AS gated
            WHERE gated.queue = :queue::text
                AND gated.filed = 'ready'
                AND gated.state = 'ready'
                AND gated.gate IS NOT NULL
                AND gated.tenant IS NULL
        )
        AND NOT EXISTS (
            SELECT
            FROM {schema}.job AS gated
            WHERE gated.queue = :queue::text
                AND gated.filed = 'ready'
                AND gated.state = 'ready'
                AND gated.gate IS NOT NULL
                AND gated.tenant IS NOT NULL
        )
    ORDER BY job.queue, job.sort_key, job.id
    LIMIT :limit
    FOR UPDATE SKIP LOCKED
))
RETURNING
    sort_key, id::text, NULL::text, task, args, attempt, fence, created_at, run_at, claimed_at, version, is_suspect,
    expires_at, headers, options, checkpoint;

-- claim.gated: ready -> running, from queues that may have jobs with gates or a rule. Locks: the session FOR KEY SHARE, the
-- gates, the job rows. The last row has no job: see claim_gated. The place stands for the sort key.
SELECT
    place, id, queue, task, args, attempt, fence, created_at, run_at, claimed_at, version, is_suspect, expires_at,
    headers, options, checkpoint, has_permit, rest, is_rare
FROM {schema}.claim_gated(
    :queues::text[], :session::uuid, :token::uuid, :tasks::text[], :limit::bigint, :gated::bigint, :at_once::bigint,
    :ahead::bigint, :spare::bigint, :batch_from::bigint, :now::timestamptz
);
