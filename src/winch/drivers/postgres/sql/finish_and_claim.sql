-- finish_and_claim: running -> completed for jobs with gates, ready -> running for the next members of their FIFO keys and
-- the next jobs under their limits. Fenced by (id, token), pairwise. Locks: the session FOR KEY SHARE, the gates, the job rows. The first row has the ids that took.
-- Nothing is done, and there is no row, where the transaction is not READ COMMITTED.
SELECT
    took, sort_key, id, queue, task, args, attempt, fence, created_at, run_at, claimed_at, version, is_suspect,
    expires_at, headers, options, checkpoint
FROM {schema}.finish_members(
    :ids::uuid[], :tokens::uuid[], :results::jsonb, :result::text, :session::uuid, :token::uuid, :queues::text[],
    :tasks::text[], :limit::bigint, :at_once::bigint, :batch_from::bigint, :now::timestamptz
);

-- finish_and_claim.begin: the session FOR KEY SHARE, before any gate; whether it is live. A finish in this transaction
-- wakes no worker for a member that it makes ready: finish_and_claim.next does.
WITH live AS MATERIALIZED (
    SELECT id
    FROM {schema}.session
    WHERE id = :session::uuid
        AND ended_at IS NULL
    FOR KEY SHARE
)
SELECT (SELECT count(*) FROM live)::integer, set_config('lock_timeout', '4s', true), set_config('winch.claims', 'on', true);

-- finish_and_claim.next: ready -> running for the next members of the FIFO keys of these jobs, which this transaction has
-- made final under the locks of their gates.
SELECT
    sort_key, id::text, queue, task, args, attempt, fence, created_at, run_at, claimed_at, version, is_suspect,
    expires_at, headers, options, checkpoint
FROM {schema}.next_members(
    ARRAY(SELECT DISTINCT fifo FROM {schema}.archive WHERE archive.id = ANY (:ids::uuid[]) AND fifo IS NOT NULL),
    :session::uuid, :token::uuid, :queues::text[], :tasks::text[], :limit::bigint,
    coalesce(:now::timestamptz, clock_timestamp())
);
