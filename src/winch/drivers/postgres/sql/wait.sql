-- wait: announces that a worker waits for these queues ('' is for due jobs). Writes at most every few seconds for
-- each queue: a row that is good for a while longer is not touched, nor locked.
INSERT INTO {schema}.queue (name, waiting_until)
SELECT waited.name, clock_timestamp() + make_interval(secs => :for_seconds)
FROM unnest(:queues::text[]) AS waited (name)
WHERE NOT EXISTS (
    SELECT
    FROM {schema}.queue
    WHERE queue.name = waited.name
        AND queue.waiting_until > clock_timestamp() + make_interval(secs => :enough_seconds)
)
ORDER BY waited.name
ON CONFLICT (name) DO UPDATE
SET waiting_until = excluded.waiting_until;

-- wait.offer: leaves a claim in the store, one row for each queue (hand_over). Locks nothing. It is not durable,
-- and need not be.
INSERT INTO {schema}.offer (token, session, queue, tasks, channel, until)
SELECT
    :token::uuid, :session::uuid, wanted.queue, :tasks::text[], :channel::text,
    clock_timestamp() + make_interval(secs => :for_seconds)
FROM unnest(:queues::text[]) AS wanted (queue);

-- wait.withdrawn: takes it back, and returns for how many queues it still stood. Locks its rows; a producer that hands a job over
-- in this moment has them, and is waited for.
WITH gone AS (
    DELETE FROM {schema}.offer
    WHERE token = :token::uuid
    RETURNING 1
)
SELECT count(*)
FROM gone;

-- wait.taken: the jobs that were handed over under it, whose word was lost, too long or is still on its way. By the
-- index of running jobs, of which there are few: claims by the hundred are not in it, and no offer is one.
SELECT
    sort_key, id::text, queue, task, args, attempt, fence, created_at, run_at, claimed_at, version, is_suspect,
    expires_at, headers, options, checkpoint
FROM {schema}.job
WHERE filed = 'running'
    AND token = :token::uuid
    AND session = :session::uuid;
