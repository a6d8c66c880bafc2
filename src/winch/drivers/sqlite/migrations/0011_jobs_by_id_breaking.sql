-- Live jobs are kept in the order of their ids, without a number for each row and the index from id to number:
-- storing one job writes two pages instead of three, and its row is found by one search instead of two.
--
-- Whoever stores a job says whether it has gates, so that no trigger has to look at each.

-- Not by renaming, which would look at triggers that name a table which is not there at that moment.
CREATE TABLE winch_job_moved AS SELECT * FROM winch_job;
DROP TABLE winch_job;

CREATE TABLE winch_job (
    id TEXT PRIMARY KEY NOT NULL,
    task TEXT NOT NULL,
    version INTEGER NOT NULL,
    args TEXT NOT NULL,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    run_at INTEGER NOT NULL,
    state TEXT NOT NULL,
    tenant TEXT,
    fifo TEXT,
    unique_key TEXT,
    tags TEXT NOT NULL DEFAULT '[]',
    headers TEXT NOT NULL DEFAULT '{}',
    options TEXT,
    expires_at INTEGER,
    max_attempts INTEGER,
    keep INTEGER,
    attempt INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    rescues INTEGER NOT NULL DEFAULT 0,
    is_suspect INTEGER NOT NULL DEFAULT 0,
    fence INTEGER NOT NULL DEFAULT 0,
    token TEXT,
    session TEXT,
    claimed_at INTEGER,
    ended_token TEXT,
    cancel_requested_at INTEGER,
    progress TEXT,
    checkpoint TEXT,
    log TEXT,
    history TEXT NOT NULL DEFAULT '[]',
    reason TEXT,
    sort_key INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    deleted_at INTEGER,
    -- NULL: a plain job. Else it has gates: '' while it does not wait, and the key of the gate while it is
    -- blocked.
    gate TEXT,
    has_undo INTEGER NOT NULL DEFAULT 0,
    -- Spelled with OR: SQLite builds a table for a longer IN list anew for every row it checks.
    CONSTRAINT job_state_is_live CHECK (
        state = 'ready' OR state = 'running' OR state = 'scheduled' OR state = 'retrying'
        OR state = 'blocked'
    ),
    CONSTRAINT job_token_iff_running CHECK ((state = 'running') = (token IS NOT NULL)),
    CONSTRAINT job_running_has_session CHECK (
        state <> 'running' OR (session IS NOT NULL AND claimed_at IS NOT NULL)
    ),
    CONSTRAINT job_attempt_from_0 CHECK (attempt >= 0)
) STRICT, WITHOUT ROWID;

INSERT INTO winch_job (
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key,
    tags, headers, options, expires_at, max_attempts, keep, attempt, crashes, rescues, is_suspect,
    fence, token, session, claimed_at, ended_token, cancel_requested_at, progress, checkpoint, log,
    history, reason, sort_key, changed_at, deleted_at, gate, has_undo
)
SELECT
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key,
    tags, headers, options, expires_at, max_attempts, keep, attempt, crashes, rescues, is_suspect,
    fence, token, session, claimed_at, ended_token, cancel_requested_at, progress, checkpoint, log,
    history, reason, sort_key, changed_at, deleted_at, gate, has_undo
FROM winch_job_moved
ORDER BY id;

DROP TABLE winch_job_moved;

-- Serves claim and explain. Jobs with gates have an index of their own: plain claims never walk over them.
CREATE INDEX winch_job_ready ON winch_job (queue, sort_key, id) WHERE state = 'ready' AND gate IS NULL;
-- Serves claim of jobs with gates.
CREATE INDEX winch_job_gated ON winch_job (queue, tenant, sort_key, id)
WHERE state = 'ready' AND gate IS NOT NULL;
-- Serves promote.
CREATE INDEX winch_job_due ON winch_job (run_at, id) WHERE state = 'scheduled' OR state = 'retrying';
-- Serves rescue, end_session, give_up and sessions.
CREATE INDEX winch_job_running ON winch_job (session) WHERE state = 'running';
-- Serves cancels.
CREATE INDEX winch_job_cancel ON winch_job (session) WHERE state = 'running' AND cancel_requested_at IS NOT NULL;
-- Serves admit, explain and counts.
CREATE INDEX winch_job_blocked ON winch_job (gate, sort_key, id) WHERE state = 'blocked';
-- Serves claim and admit: who is first of a FIFO key.
CREATE INDEX winch_job_fifo ON winch_job (fifo, created_at, id) WHERE fifo IS NOT NULL;
-- Serves enqueue and retry: the live row is what holds its unique key, so whatever ends the job frees it.
CREATE UNIQUE INDEX winch_job_unique ON winch_job (unique_key) WHERE unique_key IS NOT NULL;

-- A job that others may wait for is final, or gone, whichever verb did it.
CREATE TRIGGER winch_job_awaited AFTER DELETE ON winch_job
WHEN OLD.headers <> '{}' AND instr(OLD.headers, '"winch-awaited"') > 0
    AND (instr(OLD.headers, '"winch-awaited":"all:') = 0 OR instr(OLD.headers, '+job"') > 0)
BEGIN
    INSERT INTO winch_recheck (key) VALUES ('job:' || OLD.id);
END;

CREATE TRIGGER winch_job_awaited_together AFTER DELETE ON winch_job
WHEN OLD.headers <> '{}' AND instr(OLD.headers, '"winch-awaited":"all:') > 0
BEGIN
    INSERT INTO winch_recheck (key)
    SELECT said.key
    FROM (SELECT substr(OLD.headers, instr(OLD.headers, '"winch-awaited":"all:') + 17, 34) AS key) AS said
    WHERE said.key IS NOT (SELECT key FROM winch_recheck ORDER BY seq DESC LIMIT 1);
END;
