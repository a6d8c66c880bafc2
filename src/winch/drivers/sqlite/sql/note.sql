-- note: running stays running, with what its handler reports. Fenced by (id, token). With a number that is not
-- higher than the one of the claim's last note it changes nothing: it is a late or a repeated one.
UPDATE winch_job
SET progress = CASE WHEN note_token = :token AND note_number >= :number THEN progress ELSE coalesce(:progress, progress) END,
    checkpoint = CASE
        WHEN note_token = :token AND note_number >= :number THEN checkpoint
        ELSE coalesce(:checkpoint, checkpoint)
    END,
    has_undo = CASE WHEN note_token = :token AND note_number >= :number THEN has_undo ELSE coalesce(:has_undo, has_undo) END,
    cancel_requested_at = CASE
        WHEN note_token = :token AND note_number >= :number THEN cancel_requested_at
        WHEN NOT :forgets_cancel THEN cancel_requested_at
    END,
    log = CASE
        WHEN :log IS NULL OR (note_token = :token AND note_number >= :number) THEN log
        ELSE substr(coalesce(log, '') || :log, -:log_limit)
    END,
    note_number = CASE
        WHEN :number IS NULL OR (note_token = :token AND note_number >= :number) THEN note_number
        ELSE :number
    END,
    note_token = CASE WHEN :number IS NULL THEN note_token ELSE :token END
WHERE id = :id
    AND token = :token
    AND state = 'running'
RETURNING id;
