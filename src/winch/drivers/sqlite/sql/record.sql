-- record.put: a live job as a verb has changed it. What a verb never changes is not written.
UPDATE winch_job
SET run_at = :run_at,
    state = :state,
    attempt = :attempt,
    crashes = :crashes,
    rescues = :rescues,
    is_suspect = :is_suspect,
    token = :token,
    ended_token = :ended_token,
    cancel_requested_at = :cancel_requested_at,
    log = :log,
    history = :history,
    reason = :reason,
    sort_key = :sort_key,
    changed_at = :now
WHERE id = :id;

-- record.archive: a live job becomes final. The live row is deleted after (record.leave).
INSERT OR REPLACE INTO winch_archive (
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, attempt, crashes, rescues, is_suspect, fence,
    session, claimed_at, ended_token, cancel_requested_at, progress, checkpoint, log, history, finished_at,
    result, reason, fingerprint, has_undo, drop_at
)
SELECT
    id, task, version, args, queue, priority, created_at, run_at, :state, tenant, fifo, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, :attempt, :crashes, :rescues, :is_suspect, fence,
    session, claimed_at, :ended_token, cancel_requested_at, progress, checkpoint, :log, :history, :now, :result,
    :reason, :fingerprint, has_undo, :drop_at
FROM winch_job
WHERE id = :id;

-- record.leave: the live rows of what was archived.
DELETE FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids));
