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
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, seq, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, attempt, crashes, rescues, is_suspect, fence,
    session, claimed_at, ended_token, cancel_requested_at, progress, checkpoint, log, history, finished_at,
    result, reason, fingerprint, has_undo, drop_at
)
SELECT
    id, task, version, args, queue, priority, created_at, run_at, :state, tenant, fifo, seq, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, :attempt, :crashes, :rescues, :is_suspect, fence,
    session, claimed_at, :ended_token, cancel_requested_at, progress, checkpoint, :log, :history, :now, :result,
    :reason, :fingerprint, has_undo, :drop_at
FROM winch_job
WHERE id = :id;

-- record.leave: the live rows of what was archived.
DELETE FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids));

-- record.awaited: these jobs are about to leave the live ones: those that others may wait for are to be looked at again.
-- Where no job waits for anything this reads one empty table: a wait that begins later has its keys looked at then.
-- Jobs that are waited for together are noted once, and not again while their key stands last in the list.
WITH ended (id, headers) AS MATERIALIZED (
    SELECT winch_job.id, winch_job.headers
    FROM (SELECT 1 FROM winch_waiting LIMIT 1)
    CROSS JOIN json_each(:ids) AS leaving
    CROSS JOIN winch_job ON winch_job.id = leaving.value
    WHERE winch_job.headers <> '{}'
        AND instr(winch_job.headers, '"winch-awaited"') > 0
),
come (key) AS (
    SELECT 'job:' || id
    FROM ended
    WHERE instr(headers, '"winch-awaited":"all:') = 0
        OR instr(headers, '+job"') > 0
    UNION
    SELECT substr(headers, instr(headers, '"winch-awaited":"all:') + 17, 34)
    FROM ended
    WHERE instr(headers, '"winch-awaited":"all:') > 0
)
INSERT INTO winch_recheck (key)
SELECT key
FROM come
WHERE key IS NOT (SELECT key FROM winch_recheck ORDER BY seq DESC LIMIT 1);
