-- claim: ready -> running, for the plain jobs of one queue; admit.take is for those with gates. Nothing for a session that is ended or unknown, nothing from a
-- paused queue. The fence grows with each claim of a job, also after a restored backup.
-- RETURNING has no order: the caller sorts by (sort_key, id).
UPDATE winch_job
SET state = 'running',
    attempt = attempt + 1,
    fence = max(fence + 1, :now),
    token = :token,
    session = :session,
    claimed_at = :now,
    progress = NULL,
    log = NULL,
    changed_at = :now
WHERE rowid IN (
    SELECT rowid
    FROM winch_job
    WHERE state = 'ready'
        AND gate IS NULL
        AND queue = :queue
        AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
        AND EXISTS (SELECT 1 FROM winch_session WHERE id = :session AND ended_at IS NULL)
        AND NOT EXISTS (SELECT 1 FROM winch_queue WHERE name = :queue AND paused_at IS NOT NULL)
    ORDER BY sort_key, id
    LIMIT :limit
)
RETURNING
    sort_key, id, task, version, args, queue, attempt, fence, created_at, run_at, is_suspect, expires_at,
    headers, options, checkpoint;
