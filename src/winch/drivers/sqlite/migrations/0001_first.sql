-- The first schema.
--
-- Times are µs since the epoch, UTC. Ids and tokens are canonical UUID text. Lists, maps and histories
-- are JSON text, so that a person can read them in SQL.
--
-- Differs from PostgreSQL: no table of given ids. There it exists because a finish moves a job from one
-- table to another while somebody looks; here every writer has the file to itself (BEGIN IMMEDIATE), so
-- that a look at both tables is one look.

CREATE TABLE winch_migration (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;

-- Live jobs. Columns in the order of JobRecord; then what only the store needs:
-- sort_key is the place among the ready jobs of the queue, changed_at the time of the last change and
-- deleted_at is set by `delete` just before the row goes (the triggers for events read both).
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
) STRICT;

-- Serves claim and explain.
CREATE INDEX winch_job_ready ON winch_job (queue, sort_key, id) WHERE state = 'ready';
-- Serves promote.
CREATE INDEX winch_job_due ON winch_job (run_at, id) WHERE state = 'scheduled' OR state = 'retrying';
-- Serves rescue, end_session, give_up and sessions.
CREATE INDEX winch_job_running ON winch_job (session) WHERE state = 'running';
-- Serves cancels.
CREATE INDEX winch_job_cancel ON winch_job (session) WHERE state = 'running' AND cancel_requested_at IS NOT NULL;
-- Serves counts.
CREATE INDEX winch_job_blocked ON winch_job (id) WHERE state = 'blocked';

-- Final jobs: the same columns without token and sort_key, which a final job does not have.
CREATE TABLE winch_archive (
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
    tags TEXT NOT NULL,
    headers TEXT NOT NULL,
    options TEXT,
    expires_at INTEGER,
    max_attempts INTEGER,
    keep INTEGER,
    attempt INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    rescues INTEGER NOT NULL,
    is_suspect INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    session TEXT,
    claimed_at INTEGER,
    ended_token TEXT,
    cancel_requested_at INTEGER,
    progress TEXT,
    checkpoint TEXT,
    log TEXT,
    history TEXT NOT NULL,
    finished_at INTEGER NOT NULL,
    result TEXT,
    reason TEXT,
    drop_at INTEGER NOT NULL,
    deleted_at INTEGER,
    CONSTRAINT archive_state_is_final CHECK (
        state = 'completed' OR state = 'cancelled' OR state = 'dead'
    ),
    CONSTRAINT archive_result_is_of_completed CHECK (result IS NULL OR state = 'completed')
) STRICT;

-- Serves prune.
CREATE INDEX winch_archive_drop ON winch_archive (drop_at);
-- Serves list_jobs and counts: what went wrong is looked for among very many that went well.
CREATE INDEX winch_archive_unusual ON winch_archive (id) WHERE state = 'cancelled' OR state = 'dead';

-- Worker sessions; `lease` is its length in µs.
CREATE TABLE winch_session (
    id TEXT PRIMARY KEY NOT NULL,
    worker TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    release TEXT NOT NULL,
    queues TEXT NOT NULL,
    tasks TEXT NOT NULL,
    slots INTEGER NOT NULL,
    lease INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    beats INTEGER NOT NULL DEFAULT 0,
    ended_at INTEGER,
    end_reason TEXT,
    CONSTRAINT session_end_has_reason CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) STRICT;

-- Serves rescue.
CREATE INDEX winch_session_live ON winch_session (lease_until) WHERE ended_at IS NULL;

-- Settings of queues. A queue without a row has none.
CREATE TABLE winch_queue (
    name TEXT PRIMARY KEY NOT NULL,
    paused_at INTEGER,
    pause_reason TEXT
) STRICT;

-- The changes of jobs, written by triggers where `events="full"` is on, else empty.
CREATE TABLE winch_job_event (
    seq INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    v INTEGER NOT NULL,
    kind TEXT NOT NULL,
    state TEXT,
    token TEXT,
    by_token TEXT,
    session TEXT,
    attempt INTEGER NOT NULL,
    at INTEGER NOT NULL
) STRICT;

-- Serves the triggers: the number of a job's next change.
CREATE UNIQUE INDEX winch_job_event_of_job ON winch_job_event (job, v);
