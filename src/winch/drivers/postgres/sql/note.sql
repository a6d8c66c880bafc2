-- note: running stays running, with what its handler reports. Fenced by (id, token). With a number that is not
-- higher than the one of the claim's last note it changes nothing: it is a late or a repeated one.
-- Locks: the job row.
UPDATE {schema}.job
SET progress = CASE
        WHEN note_token = token AND note_number >= :number::integer THEN progress
        ELSE coalesce(:progress::text, progress)
    END,
    checkpoint = CASE
        WHEN note_token = token AND note_number >= :number THEN checkpoint
        ELSE coalesce(:checkpoint::text, checkpoint)
    END,
    has_undo = CASE
        WHEN note_token = token AND note_number >= :number THEN has_undo
        ELSE coalesce(:has_undo::boolean, has_undo)
    END,
    cancel_requested_at = CASE
        WHEN note_token = token AND note_number >= :number THEN cancel_requested_at
        WHEN NOT :forgets_cancel::boolean THEN cancel_requested_at
    END,
    log = CASE
        WHEN note_token = token AND note_number >= :number THEN log
        ELSE {schema}.longer(log, :log::text)
    END,
    note_number = CASE
        WHEN note_token = token THEN greatest(note_number, :number)
        ELSE coalesce(:number, note_number)
    END,
    note_token = CASE WHEN :number IS NULL THEN note_token ELSE token END
WHERE id = :id::uuid
    AND token = :token::uuid
    AND state = 'running'
RETURNING id::text;

-- note.many: the same for several claims. Fenced by (id, token) each. Locks: the job rows, by id.
WITH given AS MATERIALIZED (
    SELECT *
    FROM unnest(
        :ids::uuid[], :tokens::uuid[], :progresses::text[], :checkpoints::text[], :logs::text[],
        :have_undo::boolean[], :forget_cancel::boolean[], :numbers::integer[]
    ) AS note (id, token, progress, checkpoint, log, has_undo, forgets_cancel, number)
),
held AS MATERIALIZED (
    SELECT id
    FROM {schema}.job
    WHERE id = ANY (:ids::uuid[])
    ORDER BY id
    FOR NO KEY UPDATE
)
UPDATE {schema}.job
SET progress = CASE
        WHEN job.note_token = job.token AND job.note_number >= given.number THEN job.progress
        ELSE coalesce(given.progress, job.progress)
    END,
    checkpoint = CASE
        WHEN job.note_token = job.token AND job.note_number >= given.number THEN job.checkpoint
        ELSE coalesce(given.checkpoint, job.checkpoint)
    END,
    has_undo = CASE
        WHEN job.note_token = job.token AND job.note_number >= given.number THEN job.has_undo
        ELSE coalesce(given.has_undo, job.has_undo)
    END,
    cancel_requested_at = CASE
        WHEN job.note_token = job.token AND job.note_number >= given.number THEN job.cancel_requested_at
        WHEN NOT given.forgets_cancel THEN job.cancel_requested_at
    END,
    log = CASE
        WHEN job.note_token = job.token AND job.note_number >= given.number THEN job.log
        ELSE {schema}.longer(job.log, given.log)
    END,
    note_number = CASE
        WHEN job.note_token = job.token THEN greatest(job.note_number, given.number)
        ELSE coalesce(given.number, job.note_number)
    END,
    note_token = CASE WHEN given.number IS NULL THEN job.note_token ELSE job.token END
FROM given, held
WHERE job.id = given.id
    AND held.id = given.id
    AND job.token = given.token
    AND job.state = 'running'
RETURNING job.id::text;
