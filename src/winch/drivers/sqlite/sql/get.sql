-- get: whole live jobs by id, columns in the order of JobRecord.
SELECT
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, attempt, crashes, rescues, is_suspect, fence, token,
    session, claimed_at, ended_token, cancel_requested_at, progress, checkpoint, log, history,
    NULL AS finished_at, NULL AS result, reason, NULL AS fingerprint, nullif(gate, ''), has_undo, seq
FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids));

-- get.kept: whole final jobs by id, columns in the order of JobRecord.
SELECT
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, attempt, crashes, rescues, is_suspect, fence,
    NULL AS token, session, claimed_at, ended_token, cancel_requested_at, progress, checkpoint, log, history,
    finished_at, result, reason, fingerprint, NULL, has_undo, seq
FROM winch_archive
WHERE id IN (SELECT value FROM json_each(:ids));
