-- claim: ready -> running, for the plain jobs of one queue: which ones; admit.take is for those with gates. Nothing
-- for a session that is ended or unknown, nothing from a paused queue. All of them in one row, as JSON: Python's driver gives the interpreter lock away for every
-- row it steps to, and waits for it to come back while a busy event loop runs jobs.
-- With :unless_gated NULL where a ready job of the queue has gates or the queue has a rule: the look at that is part
-- of the statement. Else nothing from a queue with a rule.
SELECT CASE
    WHEN :unless_gated AND (
        EXISTS (SELECT 1 FROM winch_job WHERE state = 'ready' AND gate IS NOT NULL AND queue = :queue)
        OR EXISTS (SELECT 1 FROM winch_queue WHERE name = :queue AND (concurrency IS NOT NULL OR is_strict))
    ) THEN NULL
    ELSE (
        SELECT json_group_array(json_array(
            sort_key, id, task, version, args, queue, attempt, fence, created_at, run_at, is_suspect, expires_at,
            headers, options, checkpoint
        ))
        FROM (
            SELECT
                sort_key, id, task, version, args, queue, attempt, fence, created_at, run_at, is_suspect,
                expires_at, headers, options, checkpoint
            FROM winch_job
            WHERE state = 'ready'
                AND gate IS NULL
                AND queue = :queue
                AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
                AND EXISTS (SELECT 1 FROM winch_session WHERE id = :session AND ended_at IS NULL)
                AND NOT EXISTS (
                    SELECT 1
                    FROM winch_queue
                    WHERE name = :queue AND (paused_at IS NOT NULL OR concurrency IS NOT NULL OR is_strict)
                )
            ORDER BY sort_key, id
            LIMIT :limit
        )
    )
END;

-- claim.take: ready -> running, by their ids; no other process has written since they were found.
-- The fence grows with each claim of a job, also after a restored backup; the caller reckons it as it is here.
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
WHERE id IN (SELECT value FROM json_each(:ids));

-- claim.rule: what is set for a queue, and how many of its jobs hold a permit of its concurrency.
SELECT concurrency, is_strict, (SELECT count(*) FROM winch_permit WHERE gate = 'queue:' || :queue)
FROM winch_queue
WHERE name = :queue
    AND (concurrency IS NOT NULL OR is_strict);

-- claim.mark: plain jobs that a queue's concurrency counts end as jobs with gates do.
UPDATE winch_job
SET gate = ''
WHERE id IN (SELECT value FROM json_each(:ids))
    AND gate IS NULL;
