-- The schema.
--
-- Times are µs since the epoch, UTC. Ids and tokens are canonical UUID text. Lists, maps and histories
-- are JSON text, so that a person can read them in SQL.
--
-- Differs from PostgreSQL: no table of given ids. There it exists because a finish moves a job from one
-- table to another while another transaction looks; here every writer has the file to itself (BEGIN IMMEDIATE), so
-- that a look at both tables is one look.

CREATE TABLE winch_migration (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;

-- Live jobs, kept in the order of their ids: storing a job writes two pages, and one search finds it. Columns
-- in the order of JobRecord; then what only the store needs: sort_key is the place among the ready jobs of the
-- queue, changed_at the time of the last change, and deleted_at is set by `delete` just before the row goes
-- (the triggers for events read both).
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
    -- The job has done something that must be undone when it is cancelled.
    has_undo INTEGER NOT NULL DEFAULT 0,
    -- The last numbered note: the token of its claim, and its number. NULL for most.
    note_token TEXT,
    note_number INTEGER,
    -- The number of a member of a FIFO key; NULL for other jobs.
    seq INTEGER,
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

-- Serves claim and explain. Jobs with gates have an index of their own: plain claims never walk over them.
CREATE INDEX winch_job_ready ON winch_job (queue, sort_key, id) WHERE state = 'ready' AND gate IS NULL;
-- Serves claim of jobs with gates.
CREATE INDEX winch_job_gated ON winch_job (queue, tenant, sort_key, id)
WHERE state = 'ready' AND gate IS NOT NULL;
-- Serves claim of queues with strict order. Most jobs have the priority 0 and are not in it.
CREATE INDEX winch_job_priority ON winch_job (queue, priority, sort_key, id) WHERE state = 'ready' AND priority <> 0;
-- Serves promote, counts and lists; has the state, so that neither reads the jobs.
CREATE INDEX winch_job_due ON winch_job (run_at, id, state) WHERE state = 'scheduled' OR state = 'retrying';
-- Serves rescue, end_session, give_up and sessions.
CREATE INDEX winch_job_running ON winch_job (session) WHERE state = 'running';
-- Serves cancels.
CREATE INDEX winch_job_cancel ON winch_job (session) WHERE state = 'running' AND cancel_requested_at IS NOT NULL;
-- Serves admit, explain and counts.
CREATE INDEX winch_job_blocked ON winch_job (gate, sort_key, id) WHERE state = 'blocked';
-- Serves enqueue, claim and admit: the first and the last member of a FIFO key.
CREATE INDEX winch_job_fifo ON winch_job (fifo, coalesce(seq, created_at), id) WHERE fifo IS NOT NULL;
-- Serves enqueue and retry: the live row is what holds its unique key, so whatever ends the job frees it.
CREATE UNIQUE INDEX winch_job_unique ON winch_job (unique_key) WHERE unique_key IS NOT NULL;

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
    -- What a dead job died of: groups of dead letters.
    fingerprint TEXT,
    has_undo INTEGER NOT NULL DEFAULT 0,
    seq INTEGER,
    CONSTRAINT archive_state_is_final CHECK (
        state = 'completed' OR state = 'cancelled' OR state = 'dead'
    ),
    CONSTRAINT archive_result_is_of_completed CHECK (result IS NULL OR state = 'completed')
) STRICT;

-- Serves prune.
CREATE INDEX winch_archive_drop ON winch_archive (drop_at);
-- Serves list_jobs and counts: what went wrong is looked for among very many that went well.
CREATE INDEX winch_archive_unusual ON winch_archive (id) WHERE state = 'cancelled' OR state = 'dead';

-- Serves groups and the list of one group.
CREATE INDEX winch_archive_alike ON winch_archive (fingerprint, id, task, queue, finished_at)
WHERE fingerprint IS NOT NULL;

-- Serves trim.
CREATE INDEX winch_archive_dead ON winch_archive (task, finished_at, id) WHERE state = 'dead';

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
    -- What acts on commands, the same for all processes of one worker; empty: it takes none.
    supervisor TEXT NOT NULL DEFAULT '',
    labels TEXT NOT NULL DEFAULT '{}',
    queue_limits TEXT NOT NULL DEFAULT '{}',
    CONSTRAINT session_end_has_reason CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) STRICT;

-- Serves rescue.
CREATE INDEX winch_session_live ON winch_session (lease_until) WHERE ended_at IS NULL;

-- Settings of queues. A queue without a row has none.
CREATE TABLE winch_queue (
    name TEXT PRIMARY KEY NOT NULL,
    paused_at INTEGER,
    pause_reason TEXT,
    -- What claims read: how many of its jobs run at once, and whether they run by priority alone.
    concurrency INTEGER,
    is_strict INTEGER NOT NULL DEFAULT 0
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

-- Small records beside the jobs: access tokens, the audit, rates by the minute and hour.
CREATE TABLE winch_book_line (
    book TEXT NOT NULL,
    key TEXT NOT NULL,
    body TEXT NOT NULL,
    drop_at INTEGER,
    PRIMARY KEY (book, key)
) STRICT, WITHOUT ROWID;

-- Serves kv_put, which removes some of what is over.
CREATE INDEX winch_book_line_drop ON winch_book_line (drop_at) WHERE drop_at IS NOT NULL;

-- Schedules: entries that enqueue jobs at windows of their own.

-- `timing` is the key of the timing that next_at was found by.
CREATE TABLE winch_schedule (
    name TEXT PRIMARY KEY NOT NULL,
    definition TEXT NOT NULL,
    is_code INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    last_window INTEGER NOT NULL,
    next_at INTEGER,
    timing TEXT,
    pending INTEGER,
    paused_at INTEGER,
    pause_reason TEXT
) STRICT;
-- Serves due_schedules.
CREATE INDEX winch_schedule_next ON winch_schedule (next_at) WHERE paused_at IS NULL;
-- Serves due_schedules.
CREATE INDEX winch_schedule_pending ON winch_schedule (name) WHERE pending IS NOT NULL;

-- What became of a window. That a job is stored only together with its row is why a window has one job.
CREATE TABLE winch_schedule_run (
    schedule TEXT NOT NULL,
    window_at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at INTEGER NOT NULL,
    job TEXT,
    note TEXT,
    PRIMARY KEY (schedule, window_at)
) STRICT;

-- The schedules that the code of a session defines; prune removes them after the session.
CREATE TABLE winch_declaration (
    session TEXT NOT NULL,
    schedule TEXT NOT NULL,
    definition TEXT NOT NULL,
    timing TEXT NOT NULL,
    PRIMARY KEY (session, schedule)
) STRICT;
-- Serves schedules, due_schedules and change_schedule.
CREATE INDEX winch_declaration_of_schedule ON winch_declaration (schedule);

-- Schedules that live sessions declare, the latest start first.
CREATE VIEW winch_declared AS
SELECT
    winch_declaration.schedule, winch_declaration.definition, winch_declaration.timing,
    count(*) OVER (PARTITION BY winch_declaration.schedule) AS sessions,
    row_number() OVER (
        PARTITION BY winch_declaration.schedule
        ORDER BY winch_session.started_at DESC, winch_session.id DESC
    ) AS place
FROM winch_declaration
JOIN winch_session ON winch_session.id = winch_declaration.session
WHERE winch_session.ended_at IS NULL;

-- Schedules with the definition that is in effect: that of the live session which started last among those
-- that declare it, else their own.
CREATE VIEW winch_schedule_in_effect AS
SELECT
    winch_schedule.name, coalesce(latest.definition, winch_schedule.definition) AS definition,
    winch_schedule.is_code, winch_schedule.created_at, winch_schedule.last_window,
    coalesce(latest.sessions, 0) AS declared_by, winch_schedule.next_at, winch_schedule.timing,
    winch_schedule.pending, winch_schedule.paused_at, winch_schedule.pause_reason,
    latest.timing AS declared_timing
FROM winch_schedule
LEFT JOIN winch_declared AS latest ON latest.schedule = winch_schedule.name
    AND latest.place = 1;

-- Gates: limits, rates, FIFO keys, tenants and scopes.

-- What a gate remembers: of a rate what was taken, of a scope until when it is held, of a queue with tenants
-- whose turn it is. open_at: when to look again for jobs that wait.
CREATE TABLE winch_gate (
    key TEXT PRIMARY KEY NOT NULL,
    state TEXT,
    open_at INTEGER
) STRICT;
-- Serves admit.
CREATE INDEX winch_gate_due ON winch_gate (open_at) WHERE open_at IS NOT NULL;

-- Jobs that may run: with a token until that claim ends, without one (the turn of a FIFO key) until the job is final.
CREATE TABLE winch_permit (
    gate TEXT NOT NULL,
    job TEXT NOT NULL,
    token TEXT,
    weight INTEGER NOT NULL,
    -- Of a limit: a session that runs at most `at_once` jobs at once uses no more of it than so many of them do.
    session TEXT,
    at_once INTEGER,
    PRIMARY KEY (gate, job)
) STRICT, WITHOUT ROWID;
-- Serves whatever ends a claim.
CREATE INDEX winch_permit_of_job ON winch_permit (job);

-- How much of each gate is out: of each session what its jobs weigh together, but no more than the heaviest of them
-- does as often as the session runs jobs at once. `weight` and `heaviest` are of the session.
CREATE VIEW winch_gate_used AS
SELECT
    gate, session, at_once, sum(weight) AS weight, max(weight) AS heaviest,
    min(sum(weight), coalesce(at_once * max(weight), sum(weight))) AS used
FROM winch_permit
GROUP BY gate, session, at_once;

-- Limits, rates and weights as they are set for the whole fleet, by name.
CREATE TABLE winch_limit (
    name TEXT PRIMARY KEY NOT NULL,
    spec TEXT NOT NULL,
    is_live INTEGER NOT NULL,
    set_by TEXT NOT NULL,
    set_at INTEGER NOT NULL
) STRICT;

-- Unique keys that are held for a time, also when the job is final by then.
CREATE TABLE winch_unique_kept (
    key TEXT PRIMARY KEY NOT NULL,
    job TEXT NOT NULL,
    until INTEGER NOT NULL
) STRICT;
-- Serves prune.
CREATE INDEX winch_unique_kept_until ON winch_unique_kept (until);

-- Signals, and jobs that wait for them and for other jobs.

CREATE TABLE winch_signal (
    name TEXT NOT NULL,
    id TEXT NOT NULL,
    payload TEXT NOT NULL,
    sent_at INTEGER NOT NULL,
    taken_by TEXT,
    wanted_by TEXT,
    PRIMARY KEY (name, id),
    CONSTRAINT signal_taken_for_something CHECK ((taken_by IS NULL) = (wanted_by IS NULL))
) STRICT;

-- Serves take_signal and unblock.
CREATE INDEX winch_signal_untaken ON winch_signal (name, sent_at, id) WHERE taken_by IS NULL;
-- Serves take_signal, for a job that has taken one before.
CREATE INDEX winch_signal_taken ON winch_signal (taken_by, wanted_by) WHERE taken_by IS NOT NULL;
-- Serves prune.
CREATE INDEX winch_signal_sent ON winch_signal (sent_at);

-- What blocked jobs wait for. A row whose job is not blocked has no meaning, and goes when a verb meets it.
CREATE TABLE winch_waiting (
    job TEXT NOT NULL,
    key TEXT NOT NULL,
    is_enough INTEGER NOT NULL,
    until INTEGER,
    PRIMARY KEY (job, key)
) STRICT;

-- Serves unblock.
CREATE INDEX winch_waiting_key ON winch_waiting (key);
-- Serves unblock.
CREATE INDEX winch_waiting_until ON winch_waiting (until) WHERE until IS NOT NULL;

-- Keys to be checked again: written with a change that a job may wait for, taken up by unblock.
CREATE TABLE winch_recheck (
    seq INTEGER PRIMARY KEY,
    key TEXT NOT NULL
) STRICT;

-- One number per queue to scale workers by: jobs that could run now, and those that do. A paused queue's ready
-- jobs do not count, nor those beyond the queue's concurrency.

CREATE VIEW winch_backlog AS
SELECT
    winch_job.queue AS queue,
    min(
        sum(winch_job.state = 'running' OR winch_queue.paused_at IS NULL),
        max(coalesce(winch_queue.concurrency, count(*)), sum(winch_job.state = 'running'))
    ) AS value
FROM winch_job
LEFT JOIN winch_queue ON winch_queue.name = winch_job.queue
WHERE winch_job.state IN ('ready', 'running')
GROUP BY winch_job.queue;

-- The same by the label that the jobs need, like gpu=h100: for pools of workers with labels. A job that needs two
-- labels counts under both; one that needs none counts under ''.

CREATE VIEW winch_backlog_by_label AS
SELECT
    winch_job.queue AS queue,
    coalesce(needed.key || '=' || needed.value, '') AS label,
    sum(winch_job.state = 'running' OR winch_queue.paused_at IS NULL) AS value
FROM winch_job
LEFT JOIN winch_queue ON winch_queue.name = winch_job.queue
LEFT JOIN winch_book_line ON winch_book_line.book = 'needs' AND winch_book_line.key = winch_job.task
LEFT JOIN json_each(winch_book_line.body, '$.labels') AS needed ON true
WHERE winch_job.state IN ('ready', 'running')
GROUP BY winch_job.queue, label;
