-- note: running stays running, with what its handler reports. Fenced by (id, token).
UPDATE winch_job
SET progress = coalesce(:progress, progress),
    checkpoint = coalesce(:checkpoint, checkpoint),
    has_undo = coalesce(:has_undo, has_undo),
    cancel_requested_at = CASE WHEN :forgets_cancel THEN NULL ELSE cancel_requested_at END,
    log = CASE WHEN :log IS NULL THEN log ELSE substr(coalesce(log, '') || :log, -:log_limit) END
WHERE id = :id
    AND token = :token
    AND state = 'running'
RETURNING id;
