-- get: whole live jobs by id, columns in the order of JobRecord.
SELECT
    id::text, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key,
    tags, headers, options, expires_at, max_attempts, keep_seconds, attempt, crashes, rescues, is_suspect,
    fence, token::text, session::text, claimed_at, ended_token::text, cancel_requested_at, progress, checkpoint, log,
    history::text, NULL::timestamptz, NULL, reason, NULL, nullif(nullif(gate, ''), 'queue'), has_undo IS TRUE, seq
FROM {schema}.job
WHERE id = ANY (:ids::uuid[]);

-- get.both: the same, live and kept, in one look: a retry moves jobs the other way. Asked only for what was
-- not found live, because the archive has many partitions to look into.
SELECT
    id::text, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key,
    tags, headers, options, expires_at, max_attempts, keep_seconds, attempt, crashes, rescues, is_suspect,
    fence, token::text, session::text, claimed_at, ended_token::text, cancel_requested_at, progress, checkpoint, log,
    history::text, NULL::timestamptz, NULL, reason, NULL, nullif(nullif(gate, ''), 'queue'), has_undo IS TRUE, seq
FROM {schema}.job
WHERE id = ANY (:ids::uuid[])
UNION ALL
SELECT
    id::text, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key,
    tags, headers, options, expires_at, max_attempts, keep_seconds, attempt, crashes, rescues, is_suspect,
    fence, NULL, session::text, claimed_at, ended_token::text, cancel_requested_at, progress, checkpoint, log,
    history::text, finished_at, result, reason, fingerprint, NULL, has_undo IS TRUE, seq
FROM {schema}.archive
WHERE id = ANY (:ids::uuid[]);
