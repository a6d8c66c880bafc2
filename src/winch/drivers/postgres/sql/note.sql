-- note: running stays running, with what its handler reports. Fenced by (id, token). Locks: the job row.
UPDATE {schema}.job
SET progress = coalesce(:progress::text, progress),
    checkpoint = coalesce(:checkpoint::text, checkpoint),
    has_undo = coalesce(:has_undo::boolean, has_undo),
    cancel_requested_at = CASE WHEN :forgets_cancel::boolean THEN NULL ELSE cancel_requested_at END,
    log = {schema}.longer(log, :log::text)
WHERE id = :id::uuid
    AND token = :token::uuid
    AND state = 'running'
RETURNING id::text;

-- note.many: the same for several claims. Fenced by (id, token) each. Locks: the job rows, by id.
WITH given AS MATERIALIZED (
    SELECT *
    FROM unnest(
        :ids::uuid[], :tokens::uuid[], :progresses::text[], :checkpoints::text[], :logs::text[],
        :have_undo::boolean[], :forget_cancel::boolean[]
    ) AS note (id, token, progress, checkpoint, log, has_undo, forgets_cancel)
),
held AS MATERIALIZED (
    SELECT id
    FROM {schema}.job
    WHERE id = ANY (:ids::uuid[])
    ORDER BY id
    FOR NO KEY UPDATE
)
UPDATE {schema}.job
SET progress = coalesce(given.progress, job.progress),
    checkpoint = coalesce(given.checkpoint, job.checkpoint),
    has_undo = coalesce(given.has_undo, job.has_undo),
    cancel_requested_at = CASE WHEN given.forgets_cancel THEN NULL ELSE job.cancel_requested_at END,
    log = {schema}.longer(job.log, given.log)
FROM given, held
WHERE job.id = given.id
    AND held.id = given.id
    AND job.token = given.token
    AND job.state = 'running'
RETURNING job.id::text;
