-- retry: completed | cancelled | dead -> ready, anew with attempt 0; history and fence stay.
-- Scheduled and retrying jobs are brought forward by record.put.
INSERT INTO winch_job (
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, seq, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, attempt, crashes, rescues, is_suspect, fence,
    session, claimed_at, ended_token, progress, checkpoint, log, history, has_undo, sort_key, changed_at,
    gate
)
SELECT
    id, task, :version, :args, :queue, priority, created_at, :run_at, 'ready', tenant, fifo,
    CASE WHEN fifo IS NOT NULL THEN coalesce(seq, created_at) END, unique_key, tags,
    headers, :options, expires_at, :max_attempts, keep, 0, 0, 0, is_suspect, fence, session, claimed_at,
    ended_token, progress, CASE WHEN state <> 'completed' OR :keeps_steps THEN checkpoint END, log, :history, has_undo,
    :run_at - priority * :head_start, :now, CASE WHEN substr(:options, 1, 9) = '{"gates":' THEN '' END
FROM winch_archive
WHERE id = :id;

-- retry.leave: the archive's rows of what came back.
DELETE FROM winch_archive
WHERE id IN (SELECT value FROM json_each(:ids));

-- retry.change: what an operator changes in a waiting job that is brought forward.
UPDATE winch_job
SET version = :version,
    args = :args,
    queue = :queue,
    options = :options,
    gate = CASE WHEN substr(:options, 1, 9) = '{"gates":' THEN '' END,
    max_attempts = :max_attempts
WHERE id = :id;
