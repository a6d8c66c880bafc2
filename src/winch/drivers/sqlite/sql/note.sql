-- note: running stays running, with what its handler reports. Fenced by (id, token).
UPDATE winch_job
SET progress = coalesce(:progress, progress),
    checkpoint = coalesce(:checkpoint, checkpoint),
    log = CASE WHEN :log IS NULL THEN log ELSE substr(coalesce(log, '') || :log, -:log_limit) END
WHERE id = :id
    AND token = :token
    AND state = 'running'
RETURNING id;
