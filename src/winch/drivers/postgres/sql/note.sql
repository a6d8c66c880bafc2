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
