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

CREATE VIEW winch_gate_used AS
SELECT
    gate, session, at_once, sum(weight) AS weight, max(weight) AS heaviest,
    min(sum(weight), coalesce(at_once * max(weight), sum(weight))) AS used
FROM winch_permit
GROUP BY gate, session, at_once;

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

CREATE TRIGGER winch_job_event_archive AFTER INSERT ON winch_archive
BEGIN
    -- The live row is still there. A release hands the attempt back, a finish to a final state does not.
    -- Jobs that others take back differ by the entry that each verb leaves in the history.
    INSERT INTO winch_job_event (job, v, kind, state, token, by_token, session, attempt, at)
    SELECT
        NEW.id,
        1 + coalesce((SELECT max(v) FROM winch_job_event WHERE job = NEW.id), 0),
        change.kind,
        NEW.state,
        change.token,
        CASE
            WHEN change.kind = 'finished' THEN change.token
            WHEN change.kind = 'rescued' AND NEW.ended_token IS change.token THEN change.token
            WHEN change.kind = 'released' AND (NEW.ended_token IS change.token OR EXISTS (
                SELECT 1 FROM winch_session WHERE id = NEW.session AND ended_at IS NULL
            )) THEN change.token
        END,
        NEW.session, NEW.attempt, NEW.finished_at
    FROM (
        SELECT token, CASE
            WHEN state <> 'running' THEN 'cancelled'
            WHEN NEW.attempt = attempt THEN 'finished'
            WHEN json_extract(NEW.history, '$[#-1].what') IN ('crashed', 'rescued') THEN 'rescued'
            ELSE 'released'
        END AS kind
        FROM winch_job
        WHERE id = NEW.id
    ) AS change;
END;

CREATE TRIGGER winch_job_event_delete_kept AFTER DELETE ON winch_archive WHEN OLD.deleted_at IS NOT NULL
BEGIN
    INSERT INTO winch_job_event (job, v, kind, state, token, by_token, session, attempt, at)
    VALUES (
        OLD.id,
        1 + coalesce((SELECT max(v) FROM winch_job_event WHERE job = OLD.id), 0),
        'deleted', NULL, NULL, NULL, OLD.session, OLD.attempt, OLD.deleted_at
    );
END;

CREATE TRIGGER winch_job_event_delete AFTER DELETE ON winch_job WHEN OLD.deleted_at IS NOT NULL
BEGIN
    INSERT INTO winch_job_event (job, v, kind, state, token, by_token, session, attempt, at)
    VALUES (
        OLD.id,
        1 + coalesce((SELECT max(v) FROM winch_job_event WHERE job = OLD.id), 0),
        'deleted', NULL, NULL, NULL, OLD.session, OLD.attempt, OLD.deleted_at
    );
END;

CREATE TRIGGER winch_job_event_insert AFTER INSERT ON winch_job
BEGIN
    -- Only a job that comes back from the archive has a history.
    INSERT INTO winch_job_event (job, v, kind, state, token, by_token, session, attempt, at)
    VALUES (
        NEW.id,
        1 + coalesce((SELECT max(v) FROM winch_job_event WHERE job = NEW.id), 0),
        CASE WHEN NEW.history = '[]' THEN 'enqueued' ELSE 'retried' END,
        NEW.state, NULL, NULL, NEW.session, NEW.attempt, NEW.changed_at
    );
END;

CREATE TRIGGER winch_job_event_update AFTER UPDATE OF state ON winch_job WHEN OLD.state <> NEW.state
BEGIN
    -- The holder's own finish or release notes its token in the job; a finish grows the history, a
    -- release only where the handler had begun. Of what others take back, only rescue grows it. give_up
    -- presents the token; end_session does not, and has ended the session before. A crash is a rescue that
    -- presents it.
    INSERT INTO winch_job_event (job, v, kind, state, token, by_token, session, attempt, at)
    SELECT
        NEW.id,
        1 + coalesce((SELECT max(v) FROM winch_job_event WHERE job = NEW.id), 0),
        change.kind,
        NEW.state,
        CASE change.kind WHEN 'claimed' THEN NEW.token ELSE OLD.token END,
        CASE
            WHEN change.kind = 'finished' THEN OLD.token
            WHEN change.kind = 'rescued' AND NEW.ended_token IS OLD.token THEN OLD.token
            WHEN change.kind = 'released' AND (NEW.ended_token IS OLD.token OR EXISTS (
                SELECT 1 FROM winch_session WHERE id = OLD.session AND ended_at IS NULL
            )) THEN OLD.token
        END,
        NEW.session, NEW.attempt, NEW.changed_at
    FROM (
        SELECT CASE
            WHEN NEW.state = 'running' THEN 'claimed'
            WHEN NEW.state = 'blocked' AND OLD.state <> 'running' THEN 'held'
            WHEN NEW.state = 'ready' AND OLD.state = 'blocked' AND NEW.history = OLD.history THEN 'admitted'
            WHEN OLD.state <> 'running' AND NEW.history <> OLD.history THEN CASE
                WHEN json_extract(NEW.history, '$[#-1].what') = 'replaced' THEN 'replaced'
                WHEN json_extract(NEW.history, '$[#-1].what') = 'cancel requested' THEN 'cancelled'
                ELSE 'retried'
            END
            WHEN OLD.state <> 'running' THEN 'promoted'
            WHEN NEW.history = OLD.history THEN 'released'
            WHEN json_extract(NEW.history, '$[#-1].what') = 'released' THEN 'released'
            WHEN json_extract(NEW.history, '$[#-1].what') IN ('crashed', 'rescued') THEN 'rescued'
            ELSE 'finished'
        END AS kind
    ) AS change;
END;

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

CREATE TABLE winch_book_line (
    book TEXT NOT NULL,
    key TEXT NOT NULL,
    body TEXT NOT NULL,
    drop_at INTEGER,
    PRIMARY KEY (book, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE winch_declaration (
    session TEXT NOT NULL,
    schedule TEXT NOT NULL,
    definition TEXT NOT NULL,
    timing TEXT NOT NULL,
    PRIMARY KEY (session, schedule)
) STRICT;

CREATE TABLE winch_gate (
    key TEXT PRIMARY KEY NOT NULL,
    state TEXT,
    open_at INTEGER
) STRICT;

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

CREATE TABLE winch_limit (
    name TEXT PRIMARY KEY NOT NULL,
    spec TEXT NOT NULL,
    is_live INTEGER NOT NULL,
    set_by TEXT NOT NULL,
    set_at INTEGER NOT NULL
) STRICT;

CREATE TABLE winch_migration (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;

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

CREATE TABLE winch_queue (
    name TEXT PRIMARY KEY NOT NULL,
    paused_at INTEGER,
    pause_reason TEXT,
    -- What claims read: how many of its jobs run at once, and whether they run by priority alone.
    concurrency INTEGER,
    is_strict INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE winch_recheck (
    seq INTEGER PRIMARY KEY,
    key TEXT NOT NULL
) STRICT;

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

CREATE TABLE winch_schedule_run (
    schedule TEXT NOT NULL,
    window_at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at INTEGER NOT NULL,
    job TEXT,
    note TEXT,
    PRIMARY KEY (schedule, window_at)
) STRICT;

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

CREATE TABLE winch_unique_kept (
    key TEXT PRIMARY KEY NOT NULL,
    job TEXT NOT NULL,
    until INTEGER NOT NULL
) STRICT;

CREATE TABLE winch_waiting (
    job TEXT NOT NULL,
    key TEXT NOT NULL,
    is_enough INTEGER NOT NULL,
    until INTEGER,
    PRIMARY KEY (job, key)
) STRICT;

CREATE INDEX winch_archive_alike ON winch_archive (fingerprint, id, task, queue, finished_at)
WHERE fingerprint IS NOT NULL;

CREATE INDEX winch_archive_dead ON winch_archive (task, finished_at, id) WHERE state = 'dead';

CREATE INDEX winch_archive_drop ON winch_archive (drop_at);

CREATE INDEX winch_archive_unusual ON winch_archive (id) WHERE state = 'cancelled' OR state = 'dead';

CREATE INDEX winch_book_line_drop ON winch_book_line (drop_at) WHERE drop_at IS NOT NULL;

CREATE INDEX winch_declaration_of_schedule ON winch_declaration (schedule);

CREATE INDEX winch_gate_due ON winch_gate (open_at) WHERE open_at IS NOT NULL;

CREATE INDEX winch_job_blocked ON winch_job (gate, sort_key, id) WHERE state = 'blocked';

CREATE INDEX winch_job_cancel ON winch_job (session) WHERE state = 'running' AND cancel_requested_at IS NOT NULL;

CREATE INDEX winch_job_due ON winch_job (run_at, id, state) WHERE state = 'scheduled' OR state = 'retrying';

CREATE INDEX winch_job_fifo ON winch_job (fifo, coalesce(seq, created_at), id) WHERE fifo IS NOT NULL;

CREATE INDEX winch_job_gated ON winch_job (queue, tenant, sort_key, id)
WHERE state = 'ready' AND gate IS NOT NULL;

CREATE INDEX winch_job_priority ON winch_job (queue, priority, sort_key, id) WHERE state = 'ready' AND priority <> 0;

CREATE INDEX winch_job_ready ON winch_job (queue, sort_key, id) WHERE state = 'ready' AND gate IS NULL;

CREATE INDEX winch_job_running ON winch_job (session) WHERE state = 'running';

CREATE UNIQUE INDEX winch_job_unique ON winch_job (unique_key) WHERE unique_key IS NOT NULL;

CREATE UNIQUE INDEX winch_job_event_of_job ON winch_job_event (job, v);

CREATE INDEX winch_permit_of_job ON winch_permit (job);

CREATE INDEX winch_schedule_next ON winch_schedule (next_at) WHERE paused_at IS NULL;

CREATE INDEX winch_schedule_pending ON winch_schedule (name) WHERE pending IS NOT NULL;

CREATE INDEX winch_session_live ON winch_session (lease_until) WHERE ended_at IS NULL;

CREATE INDEX winch_signal_sent ON winch_signal (sent_at);

CREATE INDEX winch_signal_taken ON winch_signal (taken_by, wanted_by) WHERE taken_by IS NOT NULL;

CREATE INDEX winch_signal_untaken ON winch_signal (name, sent_at, id) WHERE taken_by IS NULL;

CREATE INDEX winch_unique_kept_until ON winch_unique_kept (until);

CREATE INDEX winch_waiting_key ON winch_waiting (key);

CREATE INDEX winch_waiting_until ON winch_waiting (until) WHERE until IS NOT NULL;
