-- finish: running -> completed | retrying | scheduled | blocked | ready | cancelled | dead.
-- Fenced by (id, token): the claims among these that are live, and whether their ends give something back: see
-- finish.archive. In one row, as JSON: see claim.
SELECT json_group_array(json_array(
    id, token, NOT (
        gate IS NULL
        OR (
            gate = ''
            AND fifo IS NULL
            AND instr(coalesce(options, ''), '"kind":"scope"') = 0
            AND NOT EXISTS (SELECT 1 FROM winch_permit WHERE job = winch_job.id)
        )
    )
))
FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids))
    AND state = 'running';

-- finish.archive: running -> completed, fenced by (id, token). :results is a JSON object of id -> result.
-- Not for a job that has something to give back: a permit, the turn of a FIFO key, or an end that a brake or a breaker
-- counts. A tenant had its turn, and what was taken of a rate is gone. What has something goes through
-- finish.archive_gated, and everything but completed through record.put or record.archive.
INSERT OR REPLACE INTO winch_archive (
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, seq, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, attempt, crashes, rescues, is_suspect, fence,
    session, claimed_at, ended_token, cancel_requested_at, progress, checkpoint, log, history, finished_at,
    result, reason, drop_at
)
SELECT
    winch_job.id, task, version, args, queue, priority, created_at, run_at, 'completed', tenant, fifo, seq,
    unique_key, tags, headers, options, expires_at, max_attempts, keep, attempt, crashes, rescues,
    is_suspect, fence, session, claimed_at, token, cancel_requested_at, progress, checkpoint, log, history,
    :now, ended.atom, NULL, :now + coalesce(keep, :keep_completed)
FROM json_each(:results) AS ended
JOIN winch_job ON winch_job.id = ended.key
WHERE winch_job.state = 'running'
    AND (
        winch_job.gate IS NULL
        OR (
            winch_job.gate = ''
            AND winch_job.fifo IS NULL
            AND instr(coalesce(winch_job.options, ''), '"kind":"scope"') = 0
            AND NOT EXISTS (SELECT 1 FROM winch_permit WHERE job = winch_job.id)
        )
    )
    AND winch_job.token = :token;

-- finish.leave: the live rows of what was archived: the claims among these that are still live.
DELETE FROM winch_job
WHERE id IN (SELECT key FROM json_each(:results))
    AND state = 'running'
    AND (
        gate IS NULL
        OR (
            gate = ''
            AND fifo IS NULL
            AND instr(coalesce(options, ''), '"kind":"scope"') = 0
            AND NOT EXISTS (SELECT 1 FROM winch_permit WHERE job = winch_job.id)
        )
    )
    AND token = :token;

-- finish.gated: the claims among these of jobs with gates, of which no brake or breaker counts the end. In one row, as
-- JSON: see claim.
SELECT json_group_array(winch_job.id)
FROM json_each(:results) AS ended
JOIN winch_job ON winch_job.id = ended.key
WHERE winch_job.state = 'running'
    AND winch_job.gate = ''
    AND winch_job.token = :token
    AND instr(coalesce(winch_job.options, ''), '"kind":"scope"') = 0;

-- finish.archive_gated: running -> completed, for the claims that finish.gated finds.
INSERT OR REPLACE INTO winch_archive (
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, seq, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, attempt, crashes, rescues, is_suspect, fence,
    session, claimed_at, ended_token, cancel_requested_at, progress, checkpoint, log, history, finished_at,
    result, reason, drop_at
)
SELECT
    winch_job.id, task, version, args, queue, priority, created_at, run_at, 'completed', tenant, fifo, seq,
    unique_key, tags, headers, options, expires_at, max_attempts, keep, attempt, crashes, rescues,
    is_suspect, fence, session, claimed_at, token, cancel_requested_at, progress, checkpoint, log, history,
    :now, ended.atom, NULL, :now + coalesce(keep, :keep_completed)
FROM json_each(:results) AS ended
JOIN winch_job ON winch_job.id = ended.key
WHERE winch_job.state = 'running'
    AND winch_job.gate = ''
    AND winch_job.token = :token
    AND instr(coalesce(winch_job.options, ''), '"kind":"scope"') = 0;

-- finish.next: the members of these FIFO keys whose turn it is now, and the gate at which they wait: a JSON object.
SELECT json_group_object(head.id, head.gate)
FROM json_each(:keys) AS wanted
JOIN winch_job AS head ON head.id = (
    SELECT id
    FROM winch_job
    WHERE fifo = wanted.value
    ORDER BY coalesce(seq, created_at), id
    LIMIT 1
)
WHERE head.state = 'blocked'
    AND head.gate = 'fifo:' || wanted.value
    AND NOT EXISTS (SELECT 1 FROM winch_permit WHERE gate = 'fifo:' || wanted.value AND token IS NULL);

-- finish.ended: what ended the claims that are no longer live.
SELECT id, state, ended_token, history
FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids))
UNION ALL
SELECT id, state, ended_token, history
FROM winch_archive
WHERE id IN (SELECT value FROM json_each(:ids));

-- finish.waits: what a job that is blocked waits for; :waits is a JSON list of [key, is_enough].
INSERT OR REPLACE INTO winch_waiting (job, key, is_enough, until)
SELECT :id, value ->> 0, value ->> 1, :until
FROM json_each(:waits);
