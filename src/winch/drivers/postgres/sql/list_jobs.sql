-- list_jobs: a page of live and kept jobs, newest first. The planner knows the parameters: a filter that is
-- not asked for, and a side that cannot have these states, costs nothing.
(
    SELECT
        id::text, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key,
        tags, headers, options, expires_at, max_attempts, keep_seconds, attempt, crashes, rescues, is_suspect,
        fence, token::text, session::text, claimed_at, ended_token::text, cancel_requested_at, progress, checkpoint, log,
        history::text, NULL::timestamptz, NULL, reason, NULL, nullif(nullif(gate, ''), 'queue'), has_undo IS TRUE, seq
    FROM {schema}.job
    WHERE :is_live::boolean
        AND (:after::uuid IS NULL OR id < :after::uuid)
        AND (:first::uuid IS NULL OR id >= :first::uuid)
        AND (:states::text[] IS NULL OR state = ANY (:states::text[]))
        AND (:task::text IS NULL OR task = :task::text)
        AND (:queue::text IS NULL OR queue = :queue::text)
        AND (:tag::text IS NULL OR tags @> ARRAY[:tag::text])
    ORDER BY job.id DESC
    LIMIT :limit
)
UNION ALL
(
    SELECT
        id::text, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key,
        tags, headers, options, expires_at, max_attempts, keep_seconds, attempt, crashes, rescues, is_suspect,
        fence, NULL, session::text, claimed_at, ended_token::text, cancel_requested_at, progress, checkpoint, log,
        history::text, finished_at, result, reason, fingerprint, NULL, has_undo IS TRUE, seq
    FROM {schema}.archive
    WHERE :is_kept::boolean
        AND (:after::uuid IS NULL OR id < :after::uuid)
        AND (:first::uuid IS NULL OR id >= :first::uuid)
        AND (:states::text[] IS NULL OR state = ANY (:states::text[]))
        AND (:task::text IS NULL OR task = :task::text)
        AND (:queue::text IS NULL OR queue = :queue::text)
        AND (:tag::text IS NULL OR tags @> ARRAY[:tag::text])
    ORDER BY archive.id DESC
    LIMIT :limit
);

-- list_jobs.unusual: the same for cancelled and dead jobs only, which are few among very many completed.
SELECT
    id::text, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key,
    tags, headers, options, expires_at, max_attempts, keep_seconds, attempt, crashes, rescues, is_suspect,
    fence, NULL, session::text, claimed_at, ended_token::text, cancel_requested_at, progress, checkpoint, log,
    history::text, finished_at, result, reason, fingerprint, NULL, has_undo IS TRUE, seq
FROM {schema}.archive
WHERE state <> 'completed'
    AND (:after::uuid IS NULL OR id < :after::uuid)
    AND (:first::uuid IS NULL OR id >= :first::uuid)
    AND state = ANY (:states::text[])
    AND (:task::text IS NULL OR task = :task::text)
    AND (:queue::text IS NULL OR queue = :queue::text)
    AND (:tag::text IS NULL OR tags @> ARRAY[:tag::text])
ORDER BY archive.id DESC
LIMIT :limit;

-- list_jobs.of_flow: the same for cancelled and dead jobs of one flow, which a batch asks for when all its members have ended.
-- Found by their own index alone: the one of all ids would lead through every final job.
WITH found AS MATERIALIZED (
    SELECT archive.id
    FROM {schema}.archive
    WHERE state <> 'completed'
        AND (:after::uuid IS NULL OR id < :after::uuid)
        AND (:first::uuid IS NULL OR id >= :first::uuid)
        AND state = ANY (:states::text[])
        AND (:task::text IS NULL OR task = :task::text)
        AND (:queue::text IS NULL OR queue = :queue::text)
        AND tags @> ARRAY[:tag::text]
)
SELECT
    id::text, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key,
    tags, headers, options, expires_at, max_attempts, keep_seconds, attempt, crashes, rescues, is_suspect,
    fence, NULL, session::text, claimed_at, ended_token::text, cancel_requested_at, progress, checkpoint, log,
    history::text, finished_at, result, reason, fingerprint, NULL, has_undo IS TRUE, seq
FROM {schema}.archive
WHERE id = ANY (ARRAY(SELECT found.id FROM found ORDER BY found.id DESC LIMIT :limit))
    AND state <> 'completed'
ORDER BY archive.id DESC
LIMIT :limit;

-- list_jobs.alike: the same for the dead jobs of one group.
SELECT
    id::text, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key,
    tags, headers, options, expires_at, max_attempts, keep_seconds, attempt, crashes, rescues, is_suspect,
    fence, NULL, session::text, claimed_at, ended_token::text, cancel_requested_at, progress, checkpoint, log,
    history::text, finished_at, result, reason, fingerprint, NULL, has_undo IS TRUE, seq
FROM {schema}.archive
WHERE fingerprint = :fingerprint::text
    AND (:after::uuid IS NULL OR id < :after::uuid)
    AND (:first::uuid IS NULL OR id >= :first::uuid)
    AND (:states::text[] IS NULL OR state = ANY (:states::text[]))
    AND (:task::text IS NULL OR task = :task::text)
    AND (:queue::text IS NULL OR queue = :queue::text)
    AND (:tag::text IS NULL OR tags @> ARRAY[:tag::text])
ORDER BY archive.id DESC
LIMIT :limit;

-- list_jobs.running: the same for running jobs only, which are few among many that wait.
SELECT
    id::text, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key,
    tags, headers, options, expires_at, max_attempts, keep_seconds, attempt, crashes, rescues, is_suspect,
    fence, token::text, session::text, claimed_at, ended_token::text, cancel_requested_at, progress, checkpoint, log,
    history::text, NULL::timestamptz, NULL, reason, NULL, nullif(nullif(gate, ''), 'queue'), has_undo IS TRUE, seq
FROM {schema}.job
WHERE id IN (SELECT id FROM {schema}.claimed)
    AND state = 'running'
    AND (:after::uuid IS NULL OR id < :after::uuid)
    AND (:first::uuid IS NULL OR id >= :first::uuid)
    AND (:task::text IS NULL OR task = :task::text)
    AND (:queue::text IS NULL OR queue = :queue::text)
    AND (:tag::text IS NULL OR tags @> ARRAY[:tag::text])
ORDER BY job.id DESC
LIMIT :limit;

-- list_jobs.few_waiting: the same for scheduled, retrying and blocked jobs only, found by their own indexes. No rows where
-- there are `most` of them or more: then list_jobs.waiting walks over all jobs and passes few others.
WITH found AS MATERIALIZED (
    SELECT job.id
    FROM {schema}.job
    WHERE filed = ANY (:states::text[])
        AND (:after::uuid IS NULL OR id < :after::uuid)
        AND (:first::uuid IS NULL OR id >= :first::uuid)
        AND (:task::text IS NULL OR task = :task::text)
        AND (:queue::text IS NULL OR queue = :queue::text)
        AND (:tag::text IS NULL OR tags @> ARRAY[:tag::text])
    LIMIT :most
)
SELECT
    id::text, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key,
    tags, headers, options, expires_at, max_attempts, keep_seconds, attempt, crashes, rescues, is_suspect,
    fence, token::text, session::text, claimed_at, ended_token::text, cancel_requested_at, progress, checkpoint, log,
    history::text, NULL::timestamptz, NULL, reason, NULL, nullif(nullif(gate, ''), 'queue'), has_undo IS TRUE, seq
FROM {schema}.job
WHERE id = ANY (ARRAY(SELECT found.id FROM found ORDER BY found.id DESC LIMIT :limit))
    AND (SELECT count(*) FROM found) < :most
    AND filed = ANY (:states::text[])
ORDER BY job.id DESC
LIMIT :limit;

-- list_jobs.are_many: whether that many jobs have these states.
SELECT count(*) >= :most
FROM (SELECT job.id FROM {schema}.job WHERE filed = ANY (:states::text[]) LIMIT :most) AS few;

-- list_jobs.waiting: the same where they are many.
SELECT
    id::text, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key,
    tags, headers, options, expires_at, max_attempts, keep_seconds, attempt, crashes, rescues, is_suspect,
    fence, token::text, session::text, claimed_at, ended_token::text, cancel_requested_at, progress, checkpoint, log,
    history::text, NULL::timestamptz, NULL, reason, NULL, nullif(nullif(gate, ''), 'queue'), has_undo IS TRUE, seq
FROM {schema}.job
WHERE filed = ANY (:states::text[])
    AND (:after::uuid IS NULL OR id < :after::uuid)
    AND (:first::uuid IS NULL OR id >= :first::uuid)
    AND (:task::text IS NULL OR task = :task::text)
    AND (:queue::text IS NULL OR queue = :queue::text)
    AND (:tag::text IS NULL OR tags @> ARRAY[:tag::text])
ORDER BY job.id DESC
LIMIT :limit;

-- list_jobs.floor: the last of so many jobs below the cursor, live or kept, whichever is newer; NULL where there are
-- fewer. By code point, as ids are compared; there is no max of uuid.
SELECT max(floor.id::text COLLATE "C")
FROM (
    (
        SELECT id
        FROM {schema}.job
        WHERE :is_live::boolean
            AND (:after::uuid IS NULL OR id < :after::uuid)
        ORDER BY job.id DESC
        LIMIT 1 OFFSET :most
    )
    UNION ALL
    (
        SELECT id
        FROM {schema}.archive
        WHERE :is_kept::boolean
            AND (:after::uuid IS NULL OR id < :after::uuid)
        ORDER BY archive.id DESC
        LIMIT 1 OFFSET :most
    )
) AS floor;
