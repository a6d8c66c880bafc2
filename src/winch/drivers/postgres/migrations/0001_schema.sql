-- The schema.
--
-- {schema} is the schema's quoted name; nothing else in here is filled in. State is text, so that both SQL
-- stores read alike. Lists that are empty and texts that are absent are NULL: most jobs have none of them,
-- and a NULL costs no byte in the row.

DO $$
BEGIN
    -- Not IF NOT EXISTS: that asks for the right to create schemas even where this one is there.
    IF to_regnamespace('{schema}') IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
END
$$;

CREATE TABLE {schema}.winch_migration (
    number integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What statements share. Simple enough that the planner puts them in place ---------------------------

CREATE FUNCTION {schema}.micros(moment timestamptz) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (extract(epoch FROM moment AT TIME ZONE 'UTC') * 1000000)::bigint;

CREATE FUNCTION {schema}.sort_key(run_at timestamptz, priority integer) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (extract(epoch FROM run_at AT TIME ZONE 'UTC') * 1000000)::bigint - priority * 60000000::bigint;

-- The moment until which a final job is kept. In UTC, where a day has 24 hours whatever the session says;
-- at most some centuries, so that no keeping time can make a finish fail.
CREATE FUNCTION {schema}.keep_until(state text, keep_seconds double precision, finished_at timestamptz)
    RETURNS timestamp
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN finished_at AT TIME ZONE 'UTC' + make_interval(secs => least(coalesce(
        keep_seconds, CASE state WHEN 'dead' THEN 15552000 ELSE 604800 END
    ), 1e10));

-- The day on which a final job may be dropped, which names its partition: the day after the end of its
-- keeping time or, when that is far away, the first of the month after it. Never before the end.
CREATE FUNCTION {schema}.drop_on(state text, keep_seconds double precision, finished_at timestamptz)
    RETURNS date
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE
        WHEN coalesce(keep_seconds, CASE state WHEN 'dead' THEN 15552000 ELSE 604800 END) < 691200
        THEN ({schema}.keep_until(state, keep_seconds, finished_at) + interval '1 day')::date
        ELSE (date_trunc('month', {schema}.keep_until(state, keep_seconds, finished_at))
            + interval '1 month')::date
    END;

-- A moment as the history has it.
CREATE FUNCTION {schema}.stamp(moment timestamptz) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

-- How an attempt ended, as the history has it. The token only where the attempt's own holder ended it.
CREATE FUNCTION {schema}.entry(
    what text, at timestamptz, attempt integer, token uuid, session uuid, claimed_at timestamptz, error jsonb,
    log text
) RETURNS jsonb
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN jsonb_strip_nulls(jsonb_build_object(
        'what', what, 'at', {schema}.stamp(at), 'attempt', attempt, 'token', token, 'session', session,
        'claimed_at', {schema}.stamp(claimed_at), 'error', error, 'log', log
    ));

-- A log with more at its end; only the last part is kept.
CREATE FUNCTION {schema}.longer(log text, more text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN more IS NULL THEN log ELSE right(coalesce(log, '') || more, 32768) END;

-- What an operator did, as the history has it.
CREATE FUNCTION {schema}.note(what text, at timestamptz, who text, note text) RETURNS jsonb
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN jsonb_strip_nulls(jsonb_build_object(
        'what', what, 'at', {schema}.stamp(at), 'by', who, 'note', note
    ));

-- The history with one more entry; only the last 100 are kept.
CREATE FUNCTION {schema}.grown(history jsonb, entry jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN jsonb_array_length(history) >= 100 THEN history - 0 ELSE coalesce(history, '[]') END
        || jsonb_build_array(entry);

-- How often this happened since then; an operator's retry starts the count over.
CREATE FUNCTION {schema}.recent(history jsonb, what text, since timestamptz) RETURNS integer
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN (
        SELECT count(*)
        FROM jsonb_array_elements(history) WITH ORDINALITY AS line (entry, place)
        WHERE line.entry ->> 'what' = what
            AND (line.entry ->> 'at')::timestamptz > since
            AND line.place > coalesce((
                SELECT max(older.place)
                FROM jsonb_array_elements(history) WITH ORDINALITY AS older (entry, place)
                WHERE older.entry ->> 'what' = 'retried'
            ), 0)
    );

-- Which other deaths a dead job's own is like. `trace` is what is the same in all errors of one kind; only
-- the store knows the task where it has to make the fingerprint itself. As core/values/fingerprint.py has it.
CREATE FUNCTION {schema}.fingerprint(task text, trace text) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN left(encode(sha256(convert_to(task || trace, 'UTF8')), 'hex'), 16);

-- Live jobs ------------------------------------------------------------------------------------------

CREATE TABLE {schema}.job (
    -- The order is that of use: a row is read from its first column to the last one that is asked for, several times for
    -- each claim and each finish. First what all rows have and has one width, then what a claim writes, then the rest
    -- that claims, finishes and triggers look at. What most jobs do not have comes last.
    id uuid PRIMARY KEY,
    created_at timestamptz NOT NULL,
    run_at timestamptz NOT NULL,
    sort_key bigint NOT NULL,
    version integer NOT NULL,
    priority integer NOT NULL,
    crashes integer NOT NULL DEFAULT 0,
    rescues integer NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    is_suspect boolean NOT NULL DEFAULT false,
    is_given_id boolean NOT NULL DEFAULT false,
    token uuid,
    session uuid,
    claimed_at timestamptz,
    state text NOT NULL,
    -- What the indexes have the job as: its state, or still `ready` while a claim by the hundred runs it. So such a
    -- claim changes no column that an index needs, and the row is replaced in its own page.
    filed text NOT NULL DEFAULT 'ready',
    -- NULL: a plain job. Else it has gates: the key of the gate while it is blocked, 'queue' once a claim took a permit of its
    -- queue for it, and '' otherwise.
    gate text COLLATE "C",
    queue text NOT NULL,
    task text NOT NULL,
    args text NOT NULL,
    unique_key text,
    expires_at timestamptz,
    headers text,
    options text,
    checkpoint text,
    ended_token uuid,
    cancel_requested_at timestamptz,
    keep_seconds double precision,
    max_attempts integer,
    tenant text,
    fifo text,
    -- The number of a member of a FIFO key: see next_seq.
    seq bigint,
    tags text[],
    progress text,
    log text,
    history jsonb,
    reason text,
    -- Whether it has done what must be undone when it is cancelled. NULL for most.
    has_undo boolean,
    -- The last numbered note: the token of its claim, and its number. NULL for most.
    note_token uuid,
    note_number integer
) WITH (
    -- A job's row is replaced by its claim and removed by its finish: the table is mostly dead rows, and
    -- claims walk over them until vacuum has been. It comes often and does not rest; it does not give
    -- pages at the end back, which would need a lock that claims wait for.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off,
    -- The rest of a page is left free for claims by the hundred.
    fillfactor = 45
);

-- Jobs with gates have indexes of their own: plain claims never walk over them.
CREATE INDEX job_ready ON {schema}.job (queue, sort_key, id) WHERE filed = 'ready' AND gate IS NULL;
COMMENT ON INDEX {schema}.job_ready IS 'serves claim and explain; has what claims by the hundred run, too';
CREATE INDEX job_gated ON {schema}.job (queue, sort_key, id)
    WHERE filed = 'ready' AND gate IS NOT NULL AND tenant IS NULL;
COMMENT ON INDEX {schema}.job_gated IS 'serves claim and explain of jobs with gates; has what claims by the hundred run, too';
CREATE INDEX job_tenant ON {schema}.job (queue, tenant, sort_key, id)
    WHERE filed = 'ready' AND gate IS NOT NULL AND tenant IS NOT NULL;
COMMENT ON INDEX {schema}.job_tenant IS 'serves claim and explain of jobs with tenants; has what claims by the hundred run, too';
-- Most jobs have the priority 0 and are not in it.
CREATE INDEX job_priority ON {schema}.job (queue, priority, sort_key, id) WHERE filed = 'ready' AND priority <> 0;
COMMENT ON INDEX {schema}.job_priority IS 'serves claim of queues with strict order';
CREATE INDEX job_blocked ON {schema}.job (gate, sort_key, id) WHERE filed = 'blocked';
COMMENT ON INDEX {schema}.job_blocked IS 'serves admit, explain and counts';
CREATE INDEX job_fifo ON {schema}.job (fifo, seq, id) WHERE fifo IS NOT NULL;
COMMENT ON INDEX {schema}.job_fifo IS 'serves claim and admit: which job is the first of a FIFO key';
CREATE INDEX job_due ON {schema}.job (run_at, id) WHERE filed IN ('scheduled', 'retrying');
COMMENT ON INDEX {schema}.job_due IS 'serves promote';
-- Not by session: a claim writes that, and a column of any index would send it to all of them.
CREATE INDEX job_running ON {schema}.job (id) WHERE filed = 'running';
COMMENT ON INDEX {schema}.job_running IS 'serves the view claimed';
CREATE INDEX job_cancel ON {schema}.job (cancel_requested_at) WHERE cancel_requested_at IS NOT NULL;
COMMENT ON INDEX {schema}.job_cancel IS 'serves cancels';

-- What a job may be. Not a CHECK: every statement that stores jobs reads a CHECK anew from its text, which for one job
-- was an eighth of the server's work apart from the commit, and what stores jobs writes constants there. It is checked
-- for every job that is changed; for a stored one where it is not filed under its state, by mark_gated; and for all jobs
-- by `winch doctor`.
CREATE FUNCTION {schema}.is_possible(job {schema}.job) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    RETURN job.attempt >= 0 AND CASE
        WHEN job.token IS NULL THEN
            job.filed = job.state AND job.state IN ('ready', 'scheduled', 'retrying', 'blocked')
        ELSE
            job.state = 'running' AND job.session IS NOT NULL AND job.claimed_at IS NOT NULL
    END;

CREATE FUNCTION {schema}.refuse_job() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'job % cannot be % as it is', NEW.id, NEW.state
        USING ERRCODE = 'check_violation', CONSTRAINT = 'job_is_possible', TABLE = 'job', SCHEMA = TG_TABLE_SCHEMA;
END
$$;

-- The condition is that of is_possible, which would be called for each row.
CREATE TRIGGER job_is_possible AFTER UPDATE ON {schema}.job
    FOR EACH ROW WHEN (
        NEW.attempt < 0
        OR CASE
            WHEN NEW.token IS NULL THEN
                NEW.filed <> NEW.state OR NEW.state NOT IN ('ready', 'scheduled', 'retrying', 'blocked')
            ELSE
                NEW.state <> 'running' OR NEW.session IS NULL OR NEW.claimed_at IS NULL
        END
    )
    EXECUTE FUNCTION {schema}.refuse_job();

-- Final jobs -----------------------------------------------------------------------------------------
-- The same columns without token and sort_key, which a final job does not have. The key is the day on
-- which a job may go, so that dropping a partition never takes a job that should stay.

CREATE TABLE {schema}.archive (
    -- In the order of use, as in `job`: what the constraints and indexes look at comes before what they do not.
    id uuid NOT NULL,
    created_at timestamptz NOT NULL,
    run_at timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    fence bigint NOT NULL,
    version integer NOT NULL,
    priority integer NOT NULL,
    attempt integer NOT NULL,
    crashes integer NOT NULL,
    rescues integer NOT NULL,
    drop_on date NOT NULL,
    is_suspect boolean NOT NULL,
    is_given_id boolean NOT NULL,
    state text NOT NULL,
    result text,
    fingerprint text, -- of dead jobs only
    queue text NOT NULL,
    task text NOT NULL,
    args text NOT NULL,
    session uuid,
    ended_token uuid,
    claimed_at timestamptz,
    expires_at timestamptz,
    cancel_requested_at timestamptz,
    keep_seconds double precision,
    max_attempts integer,
    tenant text,
    fifo text,
    unique_key text,
    tags text[],
    headers text,
    options text,
    progress text,
    checkpoint text,
    log text,
    history jsonb,
    reason text,
    has_undo boolean,
    seq bigint,
    CONSTRAINT archive_state_is_final CHECK (state IN ('completed', 'cancelled', 'dead')),
    CONSTRAINT archive_result_is_of_completed CHECK (result IS NULL OR state = 'completed')
) PARTITION BY RANGE (drop_on);

CREATE INDEX archive_id ON {schema}.archive (id);
COMMENT ON INDEX {schema}.archive_id IS 'serves get, list_jobs and the look-ups of finish';
CREATE INDEX archive_unusual ON {schema}.archive (state, id) WHERE state <> 'completed';
COMMENT ON INDEX {schema}.archive_unusual IS 'serves list_jobs and counts: few among very many';
CREATE INDEX archive_given_id ON {schema}.archive (id) WHERE is_given_id;
COMMENT ON INDEX {schema}.archive_given_id IS 'serves prune, which frees the ids that callers gave';
CREATE INDEX archive_alike ON {schema}.archive (fingerprint, id) INCLUDE (task, queue, finished_at)
    WHERE fingerprint IS NOT NULL;
COMMENT ON INDEX {schema}.archive_alike IS 'serves groups and the list of one group';
CREATE INDEX archive_dead ON {schema}.archive (task, finished_at, id) WHERE state = 'dead';
COMMENT ON INDEX {schema}.archive_dead IS 'serves trim';

-- The safety net for jobs without a partition: those kept for more than two years, and those that end when
-- no partitions have been made ahead for a while.
CREATE TABLE {schema}.archive_default PARTITION OF {schema}.archive DEFAULT;
CREATE INDEX archive_default_drop_on ON {schema}.archive_default (drop_on);
COMMENT ON INDEX {schema}.archive_default_drop_on IS 'serves prune';

-- Ids and unique keys --------------------------------------------------------------------------------

-- Ids that callers gave: they stay in place while a finish moves the job from one table to the other.
CREATE TABLE {schema}.given_id (
    id uuid PRIMARY KEY
);

-- Unique keys and the live jobs that hold them. A table of its own: the second insert of a key waits for the first
-- to commit or roll back, also while a finish moves the job. Jobs without a key never touch it.
CREATE TABLE {schema}.unique_key (
    key text PRIMARY KEY,
    job uuid NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- A key is free when its job leaves the live jobs, whichever verb (or person) removes it. A trigger, so that
-- no verb can forget it; a job without a key pays only for the condition. It never waits: only the end of its
-- holder touches a committed key, and that end has locked the job's row.
CREATE FUNCTION {schema}.free_key() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM {schema}.unique_key WHERE key = OLD.unique_key AND job = OLD.id;
    RETURN NULL;
END
$$;

CREATE TRIGGER job_frees_key AFTER DELETE ON {schema}.job
    FOR EACH ROW WHEN (OLD.unique_key IS NOT NULL)
    EXECUTE FUNCTION {schema}.free_key();

-- Unique keys that are held for a time, also when the job is final by then.
CREATE TABLE {schema}.unique_kept (
    key text PRIMARY KEY,
    job uuid NOT NULL,
    until timestamptz NOT NULL
);
CREATE INDEX unique_kept_until ON {schema}.unique_kept (until);
COMMENT ON INDEX {schema}.unique_kept_until IS 'serves prune';

-- Worker sessions, queues, events --------------------------------------------------------------------

CREATE TABLE {schema}.session (
    id uuid PRIMARY KEY,
    worker text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    release text NOT NULL,
    queues text[] NOT NULL,
    tasks text[] NOT NULL,
    slots integer NOT NULL,
    lease_seconds double precision NOT NULL,
    started_at timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    beats bigint NOT NULL DEFAULT 0,
    ended_at timestamptz,
    end_reason text,
    -- What acts on commands, the same for all processes of one worker; empty: it takes none.
    supervisor text NOT NULL DEFAULT '',
    labels text NOT NULL DEFAULT '{}',
    queue_limits text NOT NULL DEFAULT '{}',
    CONSTRAINT session_end_has_reason CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) WITH (
    -- Room for beats to replace the row in its own page. No column that a beat writes has an index.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- Settings of queues, and until when a worker waits for their jobs. The row with the empty name, which no queue
-- can have, is for processes that wait for due jobs.
CREATE TABLE {schema}.queue (
    name text PRIMARY KEY,
    paused_at timestamptz,
    pause_reason text,
    waiting_until timestamptz,
    -- What claims read: how many of its jobs run at once, and whether they run by priority alone.
    concurrency integer,
    is_strict boolean NOT NULL DEFAULT false
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- Wakes the workers that wait for jobs of these queues and, with `is_due`, the processes that wait for due jobs.
-- Without a waiter it sends no NOTIFY, because that takes a lock of the whole database at commit. Waiting is
-- a matter of real time, whatever time the verb was given. Too long a list of queues rings for all ('[]').
-- Wake-ups for due jobs have a channel of their own: a supervisor that waits for those need not hear of every job.
CREATE FUNCTION {schema}.ring(queues text[], is_due boolean) RETURNS boolean
    LANGUAGE plpgsql
AS $$
DECLARE
    payload text;
    has_due boolean;
BEGIN
    SELECT json_agg(queue.name)::text, bool_or(queue.name = '') INTO payload, has_due
    FROM {schema}.queue
    WHERE (queue.name = ANY (queues) OR (is_due AND queue.name = ''))
        AND queue.waiting_until > clock_timestamp();
    IF payload IS NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_notify(
        'winch_' || md5('{schema}'),
        CASE WHEN octet_length(payload) > 7900 THEN '[]' ELSE payload END
    );
    IF has_due THEN
        PERFORM pg_notify('winch_' || md5('{schema}') || '_due', '[""]');
    END IF;
    RETURN true;
END
$$;

-- The changes of jobs, written by triggers that `migrate` adds for events="full"; else empty.
CREATE TABLE {schema}.job_event (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job uuid NOT NULL,
    v bigint NOT NULL,
    kind text NOT NULL,
    state text,
    token uuid,
    by_token uuid,
    session uuid,
    attempt integer NOT NULL,
    at timestamptz NOT NULL
);
CREATE UNIQUE INDEX job_event_of_job ON {schema}.job_event (job, v);
COMMENT ON INDEX {schema}.job_event_of_job IS 'serves the triggers: the number of a job''s next change';

-- Claims ---------------------------------------------------------------------------------------------

-- One row for each claim by the hundred. `unended` is never less than the number of its jobs that run; only
-- a finish that completes them counts it down. The row goes when none is left, or rescue has filed those that are.
CREATE TABLE {schema}.lease (
    token uuid PRIMARY KEY,
    session uuid NOT NULL,
    claimed_at timestamptz NOT NULL,
    unended integer NOT NULL,
    ids uuid[] NOT NULL
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off,
    toast.autovacuum_vacuum_scale_factor = 0.02,
    toast.autovacuum_vacuum_cost_delay = 0,
    toast.vacuum_truncate = off
);
ALTER TABLE {schema}.lease ALTER COLUMN ids SET STORAGE EXTERNAL;
CREATE INDEX lease_session ON {schema}.lease (session);
COMMENT ON INDEX {schema}.lease_session IS 'serves the view claimed';

-- The live claims, whichever way they were made: a job that runs is in it exactly once. Leases of which nothing runs any
-- more wait for the next sweep, and are left out.
CREATE VIEW {schema}.claimed AS
SELECT job.id, job.token, job.session
FROM {schema}.job
WHERE job.filed = 'running'
UNION ALL
SELECT job.id, job.token, lease.session
FROM {schema}.lease
CROSS JOIN LATERAL unnest(lease.ids) AS member (id)
CROSS JOIN LATERAL (
    SELECT job.id, job.token
    FROM {schema}.job
    WHERE job.id = member.id
        AND job.token = lease.token
        AND job.filed = 'ready'
    OFFSET 0 -- by its id, whatever the planner believes
) AS job
WHERE lease.unended > 0;

-- Offers: claims that wait in the store. A worker that found nothing leaves one. A producer that stores a plain job
-- meanwhile assigns the job to it in the same write: claimed under the offer's token, and sent on the worker's own channel.
-- This saves the worker a claim and the disk a commit. docs/protocol.md says what a lost notification means.
--
-- UNLOGGED, because an offer is only a chance: after a crash there are none. The offer of a worker that is gone ends by
-- its time, or because its session has ended.
CREATE UNLOGGED TABLE {schema}.offer (
    token uuid NOT NULL,
    session uuid NOT NULL,
    queue text NOT NULL,
    tasks text[],
    channel text NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (token, queue)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
-- By time, too: while a snapshot is held, those that are gone pile up, and only the last seconds of them are met.
CREATE INDEX offer_standing ON {schema}.offer (queue, until);
COMMENT ON INDEX {schema}.offer_standing IS 'serves hand_over';

-- Takes an offer for a job that is about to be stored, stores the job as claimed under it, and notifies the worker;
-- rings for the queue where there is none. A job with gates must pass them first (room_at_gate), and gets its permit. Locks:
-- the gate; an offer, and its session FOR KEY SHARE, past offers that other transactions have and sessions that are about to
-- end. Waits for no lock of a row. A trigger, and with the rights of its owner: the token of the claim goes into the row and to
-- the worker alone. A producer, which may insert jobs and read neither offers nor tokens, never sees it; with it, it could end
-- the worker's claims.
CREATE FUNCTION {schema}.hand_over() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    taken {schema}.offer;
    room record;
    has_room boolean := NEW.gate IS NULL;
    word json;
BEGIN
    NEW.fence := 0;
    IF NOT has_room AND EXISTS (
        SELECT
        FROM {schema}.offer
        WHERE offer.queue = NEW.queue
            AND offer.until > clock_timestamp()
            AND (offer.tasks IS NULL OR NEW.task = ANY (offer.tasks))
    ) THEN
        room := {schema}.room_at_gate(NEW);
        has_room := room.key IS NOT NULL;
    END IF;
    DELETE FROM {schema}.offer
    WHERE ctid = (
        SELECT offer.ctid
        FROM {schema}.offer
        JOIN {schema}.session ON session.id = offer.session AND session.ended_at IS NULL
        WHERE offer.queue = NEW.queue
            AND offer.until > clock_timestamp()
            AND (offer.tasks IS NULL OR NEW.task = ANY (offer.tasks))
            AND NEW.state = 'ready'
            AND has_room
            AND EXISTS (
                SELECT
                FROM {schema}.queue
                WHERE name = NEW.queue AND paused_at IS NULL AND concurrency IS NULL AND NOT is_strict
            )
        ORDER BY offer.queue DESC, offer.until DESC
        LIMIT 1
        FOR UPDATE OF offer SKIP LOCKED
        FOR KEY SHARE OF session SKIP LOCKED
    )
    RETURNING * INTO taken;
    IF taken.token IS NULL THEN
        PERFORM pg_notify('winch_' || md5('{schema}'), json_build_array(NEW.queue)::text);
        RETURN NEW;
    END IF;
    NEW.state := 'running';
    NEW.filed := 'running';
    NEW.attempt := 1;
    NEW.fence := {schema}.micros(NEW.created_at);
    NEW.token := taken.token;
    NEW.session := taken.session;
    NEW.claimed_at := NEW.created_at;
    IF NEW.gate IS NULL THEN
        word := json_build_array(taken.token, NEW.id, NEW.queue, NEW.task, NEW.args, NEW.version, NEW.fence);
    ELSE
        -- As claim_gated has it. Without `at_once` the permit counts in full.
        INSERT INTO {schema}.permit (gate, job, token, weight, session)
        VALUES (
            room.key, NEW.id, CASE WHEN room.weight > 0 THEN taken.token END, room.weight, taken.session
        );
        word := json_build_array(
            taken.token, NEW.id, NEW.queue, NEW.task, NEW.args, NEW.version, NEW.fence, NEW.options
        );
    END IF;
    -- A notification has room for 8,000 bytes. The worker looks up what it does not receive.
    PERFORM pg_notify(
        taken.channel,
        CASE WHEN octet_length(word::text) > 7900 THEN json_build_array(taken.token)::text ELSE word::text END
    );
    RETURN NEW;
END
$$;
REVOKE EXECUTE ON FUNCTION {schema}.hand_over FROM PUBLIC;

-- A fence below zero is the producer's wish for an offer: no stored job has one. After job_has_gates, by name.
CREATE TRIGGER job_is_handed_over BEFORE INSERT ON {schema}.job
    FOR EACH ROW WHEN (NEW.fence < 0)
    EXECUTE FUNCTION {schema}.hand_over();

-- Gates: limits, rates, FIFO keys, tenants and scopes ------------------------------------------------

-- The row that is locked before a permit is taken or returned and before a gate opens. It holds what a gate remembers: of a
-- rate what was taken, of a scope until when it is held, of a queue with tenants whose turn it is. open_at: when to
-- look again at the jobs that wait.
CREATE TABLE {schema}.gate (
    key text COLLATE "C" PRIMARY KEY,
    state text,
    open_at timestamptz
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
CREATE INDEX gate_due ON {schema}.gate (open_at) WHERE open_at IS NOT NULL;
COMMENT ON INDEX {schema}.gate_due IS 'serves admit';

-- Which jobs may run: with a token until that claim ends, without one (the turn of a FIFO key) until the job is final.
CREATE TABLE {schema}.permit (
    gate text COLLATE "C" NOT NULL,
    job uuid NOT NULL,
    token uuid,
    weight integer NOT NULL,
    -- Of a limit: a session that runs at most `at_once` jobs at once uses no more of it than so many of them do.
    session uuid,
    at_once integer,
    PRIMARY KEY (gate, job)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
CREATE INDEX permit_of_job ON {schema}.permit (job);
COMMENT ON INDEX {schema}.permit_of_job IS 'serves whatever ends a claim';

-- How much of a gate is out: of each session what its jobs weigh together, but no more than the heaviest of them does as
-- often as the session runs jobs at once.
CREATE FUNCTION {schema}.gate_used(wanted text) RETURNS bigint
    LANGUAGE sql STABLE
    RETURN (
        SELECT coalesce(sum(held.used), 0)::bigint
        FROM (
            SELECT least(sum(permit.weight), max(permit.at_once)::bigint * max(permit.weight)) AS used
            FROM {schema}.permit
            WHERE permit.gate = wanted
            GROUP BY permit.session, permit.at_once
        ) AS held
    );

-- Whether a job that is about to be stored can run at once: its only gate is a limit with room for it or a FIFO key without
-- other members, nothing waits there, and no other transaction has the gate. Then the gate and what the job takes of it, 0 for
-- a turn; else NULL, and a claim decides. Locks the gate, as a claim does. Waits at most 20 ms, where another transaction has
-- just made or removed the gate's row. What is read after the lock has a snapshot of its own.
CREATE FUNCTION {schema}.room_at_gate(job {schema}.job, OUT key text, OUT weight integer)
    LANGUAGE plpgsql
    SET enable_bitmapscan = off
    SET enable_seqscan = off
    SET jit = off
    SET lock_timeout = '20ms'
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    uses jsonb := job.options::jsonb -> 'gates';
    use jsonb := uses -> 0;
    wanted text := use ->> 'key';
    most bigint;
    used bigint;
    takes integer := 0;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed'
        OR job.tenant IS NOT NULL
        OR jsonb_array_length(uses) <> 1
        OR NOT (use ->> 'kind' = 'limit' OR (use ->> 'kind' = 'fifo' AND wanted = 'fifo:' || job.fifo))
    THEN
        RETURN;
    END IF;
    PERFORM FROM {schema}.gate WHERE gate.key = wanted FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        BEGIN
            INSERT INTO {schema}.gate (key) VALUES (wanted) ON CONFLICT DO NOTHING;
        EXCEPTION WHEN lock_not_available THEN
            RETURN;
        END;
        IF NOT FOUND THEN
            RETURN; -- another transaction has the row
        END IF;
    END IF;
    IF use ->> 'kind' = 'fifo' THEN
        IF EXISTS (SELECT FROM {schema}.job AS member WHERE member.fifo = job.fifo)
            OR EXISTS (SELECT FROM {schema}.permit WHERE permit.gate = wanted AND permit.token IS NULL)
        THEN
            RETURN;
        END IF;
    ELSE
        most := coalesce(
            (SELECT (limit_set.spec::jsonb ->> 'n')::bigint FROM {schema}.limit_set WHERE limit_set.name = use ->> 'name'),
            (use ->> 'n')::bigint, 0
        );
        takes := coalesce((use ->> 'weight')::integer, 1);
        -- As gate_used has it, which would be planned anew for each job.
        used := (
            SELECT coalesce(sum(held.used), 0)
            FROM (
                SELECT least(sum(permit.weight), max(permit.at_once)::bigint * max(permit.weight)) AS used
                FROM {schema}.permit
                WHERE permit.gate = wanted
                GROUP BY permit.session, permit.at_once
            ) AS held
        );
        IF takes < 1
            OR used + takes > most
            OR EXISTS (SELECT FROM {schema}.job AS other WHERE other.filed = 'blocked' AND other.gate = wanted)
        THEN
            RETURN;
        END IF;
    END IF;
    key := wanted;
    weight := takes;
END
$$;
REVOKE EXECUTE ON FUNCTION {schema}.room_at_gate FROM PUBLIC;

-- Limits, rates and weights as they are set for the whole fleet, by name.
CREATE TABLE {schema}.limit_set (
    name text PRIMARY KEY,
    spec text NOT NULL,
    is_live boolean NOT NULL,
    set_by text NOT NULL,
    set_at timestamptz NOT NULL
);

-- The options of a job show whether it has gates, whichever verb stores it. They are read here and not in the condition:
-- a plain job pays only for the condition, which PostgreSQL parses for each statement.
CREATE FUNCTION {schema}.mark_gated() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    IF NEW.filed <> NEW.state AND NOT {schema}.is_possible(NEW) THEN
        RAISE EXCEPTION 'job % cannot be % as it is', NEW.id, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'job_is_possible', TABLE = 'job', SCHEMA = TG_TABLE_SCHEMA;
    END IF;
    IF left(NEW.options, 9) = '{"gates":' THEN
        NEW.gate := '';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER job_has_gates BEFORE INSERT ON {schema}.job
    FOR EACH ROW WHEN (NEW.options IS NOT NULL OR NEW.filed <> NEW.state)
    EXECUTE FUNCTION {schema}.mark_gated();

-- A member of a FIFO key has a number from one sequence: members run in the order of their numbers, not of time and
-- id, which jobs of one call share or draw at random. A sequence gives numbers outside of transactions, so no producer
-- waits for another.
CREATE SEQUENCE {schema}.job_seq AS bigint;

-- The next number. Numbers are at most an hour behind the clock, in µs: a sequence that was set back (tables copied
-- without it, as logical replication does) is brought forward, so that members stored from then on come last. One
-- producer does that at a time, under a lock of a moment that ends before its transaction; others look again.
CREATE FUNCTION {schema}.next_seq() RETURNS bigint
    LANGUAGE plpgsql
AS $$
DECLARE
    given bigint := nextval('{schema}.job_seq');
    clock bigint := {schema}.micros(clock_timestamp());
    behind CONSTANT bigint := 3600000000;
    own CONSTANT bigint := hashtextextended('{schema}.job_seq', 0);
BEGIN
    FOR look IN 1..100 LOOP
        EXIT WHEN given >= clock - behind;
        IF pg_try_advisory_lock(own) THEN
            IF (SELECT last_value FROM {schema}.job_seq) < clock - behind THEN
                PERFORM setval('{schema}.job_seq', clock);
            END IF;
            PERFORM pg_advisory_unlock(own);
        ELSE
            PERFORM pg_sleep(0.001);
        END IF;
        given := nextval('{schema}.job_seq');
    END LOOP;
    RETURN given;
END
$$;

-- Locks gates, in the order of their keys; makes those that are missing. Repeats where another transaction removed one
-- while this one waited for it. `purpose`:
--   take    a claim: one at a time
--   return  the end of claims under limits: beside other ends and beside a claim, which counts a permit until it is gone
--   open    everything else, and a claim before it blocks a job: alone
CREATE FUNCTION {schema}.lock_gates(keys text[], purpose text DEFAULT 'open') RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    wanted integer := cardinality(keys);
    locked integer;
    setting text;
BEGIN
    -- A client that is stopped before it commits must not hold gates for long: the server ends its transaction.
    setting := set_config('idle_in_transaction_session_timeout', '2s', true);
    LOOP
        CASE purpose
            WHEN 'take' THEN
                PERFORM FROM {schema}.gate WHERE key = ANY (keys) ORDER BY key FOR NO KEY UPDATE;
            WHEN 'return' THEN
                PERFORM FROM {schema}.gate WHERE key = ANY (keys) ORDER BY key FOR KEY SHARE;
            ELSE
                PERFORM FROM {schema}.gate WHERE key = ANY (keys) ORDER BY key FOR UPDATE;
        END CASE;
        GET DIAGNOSTICS locked = ROW_COUNT;
        EXIT WHEN locked >= wanted;
        wanted := (SELECT count(DISTINCT key) FROM unnest(keys) AS key); -- some may be named twice
        EXIT WHEN locked >= wanted;
        INSERT INTO {schema}.gate (key)
        SELECT DISTINCT key COLLATE "C" AS key FROM unnest(keys) AS key ORDER BY key
        ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN locked;
END
$$;

-- blocked -> ready, for up to `numbers` of the jobs that wait at each of these gates, or the first member of a FIFO key when
-- the turn is free. The caller has locked the gates. A locked job is passed over: the transaction that holds it opens the
-- gate, too. Jobs that wait for the concurrency of their queue are ready: for those, workers are woken.
CREATE FUNCTION {schema}.open_gates(opened text[], numbers bigint[]) RETURNS integer
    LANGUAGE plpgsql
    SET enable_bitmapscan = off
    SET enable_seqscan = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    key text;
    has_fifo boolean := false;
    has_queue boolean := false;
    has_other boolean := false;
    heads uuid[] := '{}';
    chosen uuid[] := '{}';
    woken text[];
    setting text;
BEGIN
    FOREACH key IN ARRAY opened LOOP
        has_fifo := has_fifo OR starts_with(key, 'fifo:');
        has_queue := has_queue OR starts_with(key, 'queue:');
        has_other := has_other OR NOT (starts_with(key, 'fifo:') OR starts_with(key, 'queue:'));
    END LOOP;
    IF has_other THEN
        chosen := ARRAY(
            SELECT first.id
            FROM unnest(opened, numbers) AS given (key, most)
            CROSS JOIN LATERAL (
                SELECT job.id
                FROM {schema}.job
                WHERE job.filed = 'blocked' AND job.gate = given.key
                ORDER BY job.gate, job.sort_key, job.id
                LIMIT given.most
                FOR UPDATE SKIP LOCKED
            ) AS first
            WHERE NOT starts_with(given.key, 'fifo:') AND NOT starts_with(given.key, 'queue:')
        );
    END IF;
    IF has_fifo THEN
        heads := ARRAY(
            SELECT first.id
            FROM unnest(opened) AS given (key)
            CROSS JOIN LATERAL (
                SELECT job.id, job.state, job.gate
                FROM {schema}.job
                WHERE job.fifo = substr(given.key, 6)
                ORDER BY job.fifo, job.seq, job.id
                LIMIT 1
            ) AS first
            WHERE starts_with(given.key, 'fifo:')
                AND first.state = 'blocked'
                AND first.gate = given.key
                AND NOT EXISTS (SELECT FROM {schema}.permit WHERE permit.gate = given.key AND permit.token IS NULL)
        );
        IF cardinality(heads) > 0 THEN
            heads := ARRAY(
                SELECT job.id
                FROM {schema}.job
                WHERE job.id = ANY (heads) AND job.state = 'blocked' AND job.gate = 'fifo:' || job.fifo
                ORDER BY job.id
                FOR UPDATE SKIP LOCKED
            );
        END IF;
    END IF;
    IF cardinality(chosen) + cardinality(heads) > 0 THEN
        WITH admitted AS (
            UPDATE {schema}.job SET state = 'ready', filed = 'ready', gate = '' WHERE id = ANY (chosen || heads)
            RETURNING id, queue
        )
        SELECT array_agg(DISTINCT queue) INTO woken
        FROM admitted
        -- A finish that claims wakes workers itself, for what it does not take.
        WHERE current_setting('winch.claims', true) IS DISTINCT FROM 'on' OR id = ANY (chosen);
        IF current_setting('winch.claims', true) = 'limits' THEN
            setting := set_config('winch.opened', chosen::text, true);
            woken := NULL;
        END IF;
    END IF;
    IF has_queue THEN
        woken := woken || ARRAY(SELECT substr(name, 7) FROM unnest(opened) AS name WHERE starts_with(name, 'queue:'));
    END IF;
    IF cardinality(woken) > 0 THEN
        PERFORM {schema}.ring(woken, false);
    END IF;
    RETURN cardinality(chosen) + cardinality(heads);
END
$$;

-- A permit ends with its claim, a turn with its job, whichever verb (or person) ends them: a trigger, so that none
-- can forget it. It locks the gates after the job's row; finish, rescue and end_session, which end many at once, lock
-- them before (admit.lock, admit.lock_running), and a claim waits for no job. What is left of cycles, such as a
-- delete beside a finish, the server breaks and the pool repeats. complete_gated does it for all its jobs at once: the
-- setting `winch.completes` is on for that statement alone.
CREATE FUNCTION {schema}.leave_gates() RETURNS trigger
    LANGUAGE plpgsql
AS $$
DECLARE
    is_gone boolean := TG_OP = 'DELETE';
    keeps_turn boolean := false;
    opened text[];
    numbers bigint[];
    keys text[];
BEGIN
    keys := ARRAY(
        SELECT gate FROM {schema}.permit WHERE job = OLD.id AND (is_gone OR token = OLD.token)
    );
    IF is_gone AND OLD.fifo IS NOT NULL THEN
        keys := keys || ('fifo:' || OLD.fifo);
        keeps_turn := position('"blocks_on_death":true' IN OLD.options) > 0
            AND EXISTS (SELECT FROM {schema}.archive WHERE id = OLD.id AND state = 'dead');
    END IF;
    IF cardinality(keys) = 0 THEN
        RETURN NULL;
    END IF;
    PERFORM {schema}.lock_gates(keys);
    WITH freed AS (
        DELETE FROM {schema}.permit
        WHERE job = OLD.id
            AND (token = OLD.token OR (is_gone AND NOT (keeps_turn AND token IS NULL)))
        RETURNING gate, weight
    )
    SELECT array_agg(gate::text), array_agg(greatest(weight, 1)::bigint) INTO opened, numbers FROM freed;
    IF is_gone AND OLD.fifo IS NOT NULL AND NOT keeps_turn AND ('fifo:' || OLD.fifo = ANY (opened)) IS NOT TRUE THEN
        opened := opened || ('fifo:' || OLD.fifo);
        numbers := numbers || 1::bigint;
    END IF;
    IF opened IS NOT NULL THEN
        PERFORM {schema}.open_gates(opened, numbers);
    END IF;
    RETURN NULL;
END
$$;

-- A job of a tenant without a gate of its own that never took a permit of its queue holds nothing, so these triggers skip it.
CREATE TRIGGER job_leaves_gates AFTER UPDATE ON {schema}.job
    FOR EACH ROW WHEN (
        OLD.gate IS NOT NULL
        AND OLD.state = 'running'
        AND NEW.state <> 'running'
        AND (OLD.gate <> '' OR starts_with(OLD.options, '{"gates":[]') IS NOT TRUE)
    )
    EXECUTE FUNCTION {schema}.leave_gates();

CREATE TRIGGER job_is_gone_from_gates AFTER DELETE ON {schema}.job
    FOR EACH ROW WHEN (
        OLD.gate IS NOT NULL
        AND (OLD.gate <> '' OR starts_with(OLD.options, '{"gates":[]') IS NOT TRUE)
        AND current_setting('winch.completes', true) IS DISTINCT FROM 'on'
    )
    EXECUTE FUNCTION {schema}.leave_gates();


-- ready | blocked -> running, for the first members of these FIFO keys, which other members have left: those that a claim
-- with these parameters would take first. A blocked member is admitted and claimed in one write. The others are made ready
-- and wake their workers. A key without members loses its gate. The caller has locked the session FOR KEY SHARE, then
-- the gates; most = 0 where the session has ended. Only members without another gate are taken: what core/gates decides
-- about any other is not repeated here.
CREATE FUNCTION {schema}.next_members(
    keys text[], by_session uuid, by_token uuid, served text[], known text[], most bigint, at timestamptz,
    batch_from bigint DEFAULT NULL
) RETURNS SETOF {schema}.job
    LANGUAGE plpgsql
    SET enable_bitmapscan = off
    SET enable_seqscan = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    h_id uuid[];
    h_queue text[];
    h_sort bigint[];
    h_fit boolean[]; -- NULL: this worker's claims do not see it
    empty text[];
    fit uuid[];
    chosen uuid[] := '{}';
    served_queue text;
    is_paused boolean;
    is_ruled boolean;
    first_sort bigint;
    first_id uuid;
    is_batch boolean;
    number integer := 0;
    woken text[];
BEGIN
    -- One gate is one `kind`; text that was damaged by hand is not read as JSON. Turns are read in the order of their index:
    -- such a scan marks entries of turns that are gone, and the next one passes over them.
    WITH member AS MATERIALIZED (
        SELECT
            wanted.key, first.id, first.queue, first.sort_key,
            first.tenant IS NULL AND (known IS NULL OR first.task = ANY (known)) AS is_seen,
            length(first.options) - length(replace(first.options, '"kind":', '')) = length('"kind":') AS is_fit,
            (first.state = 'ready' OR (first.state = 'blocked' AND first.gate = 'fifo:' || wanted.key))
                AND (
                    SELECT permit.job
                    FROM {schema}.permit
                    WHERE permit.gate = 'fifo:' || wanted.key AND permit.token IS NULL
                    ORDER BY permit.gate, permit.job
                    LIMIT 1
                ) IS NULL AS is_head
        FROM unnest(keys) AS wanted (key)
        LEFT JOIN LATERAL (
            SELECT job.id, job.state, job.gate, job.queue, job.task, job.tenant, job.options, job.sort_key
            FROM {schema}.job
            WHERE job.fifo = wanted.key
            ORDER BY job.fifo, job.seq, job.id
            LIMIT 1
        ) AS first ON true
    )
    SELECT
        array_agg(member.id) FILTER (WHERE member.is_head), array_agg(member.queue) FILTER (WHERE member.is_head),
        array_agg(member.sort_key) FILTER (WHERE member.is_head),
        array_agg(CASE WHEN member.is_seen THEN member.is_fit END) FILTER (WHERE member.is_head),
        array_agg(member.id) FILTER (WHERE member.is_head AND member.is_seen AND member.is_fit),
        array_agg('fifo:' || member.key) FILTER (WHERE member.id IS NULL)
    INTO h_id, h_queue, h_sort, h_fit, fit, empty
    FROM member;
    IF empty IS NOT NULL THEN
        DELETE FROM {schema}.gate
        WHERE gate.key = ANY (empty) AND NOT EXISTS (SELECT FROM {schema}.permit WHERE permit.gate = gate.key);
    END IF;
    IF h_id IS NULL THEN
        RETURN;
    END IF;
    fit := coalesce(fit, '{}');
    most := least(most, cardinality(fit));
    FOREACH served_queue IN ARRAY served LOOP
        EXIT WHEN cardinality(chosen) >= most;
        SELECT queue.paused_at IS NOT NULL, queue.concurrency IS NOT NULL OR queue.is_strict
        INTO is_paused, is_ruled
        FROM {schema}.queue
        WHERE queue.name = served_queue;
        CONTINUE WHEN is_paused;
        -- A claim reads the settings of a queue. A change of them waits for the session's lock. Between tenants turns
        -- decide, not sort keys: a claim draws them.
        EXIT WHEN is_ruled OR EXISTS (
            SELECT
            FROM {schema}.job
            WHERE job.queue = served_queue AND job.filed = 'ready' AND job.state = 'ready' AND job.gate IS NOT NULL
                AND job.tenant IS NOT NULL
        );
        -- The first job that a claim would decide: members are taken up to it, and none of the queues after it.
        SELECT other.sort_key, other.id INTO first_sort, first_id
        FROM (
            (
                SELECT job.sort_key, job.id
                FROM {schema}.job
                WHERE job.queue = served_queue
                    AND job.filed = 'ready'
                    AND job.gate IS NULL
                    AND job.state = 'ready'
                    AND (known IS NULL OR job.task = ANY (known))
                ORDER BY job.queue, job.sort_key, job.id
                LIMIT 1
            )
            UNION ALL
            (
                SELECT job.sort_key, job.id
                FROM {schema}.job
                WHERE job.queue = served_queue
                    AND job.filed = 'ready'
                    AND job.state = 'ready'
                    AND job.gate IS NOT NULL
                    AND job.tenant IS NULL
                    AND (known IS NULL OR job.task = ANY (known))
                    AND job.id NOT IN (SELECT unnest(fit)) -- which is hashed
                ORDER BY job.queue, job.sort_key, job.id
                LIMIT 1
            )
            UNION ALL
            SELECT head.sort_key, head.id
            FROM unnest(h_id, h_queue, h_sort, h_fit) AS head (id, queue, sort_key, is_fit)
            WHERE head.queue = served_queue AND NOT head.is_fit
        ) AS other
        ORDER BY other.sort_key, other.id
        LIMIT 1;
        chosen := chosen || ARRAY(
            SELECT head.id
            FROM unnest(h_id, h_queue, h_sort, h_fit) AS head (id, queue, sort_key, is_fit)
            WHERE head.queue = served_queue
                AND head.is_fit
                AND (first_id IS NULL OR (head.sort_key, head.id) < (first_sort, first_id))
            ORDER BY head.sort_key, head.id
            LIMIT most - cardinality(chosen)
        );
        EXIT WHEN first_id IS NOT NULL;
    END LOOP;
    chosen := ARRAY(
        SELECT job.id
        FROM {schema}.job
        WHERE job.id = ANY (chosen)
            AND (
                (job.state = 'ready' AND job.gate IS NOT NULL)
                OR (job.state = 'blocked' AND job.gate = 'fifo:' || job.fifo)
            )
        ORDER BY job.id
        FOR UPDATE SKIP LOCKED
    );
    IF cardinality(chosen) > 0 THEN
        -- By the hundred, as other claims: a member that was ready keeps its place in the indexes.
        is_batch := coalesce(cardinality(chosen) >= batch_from, false);
        IF is_batch THEN
            PERFORM {schema}.add_lease(by_token, by_session, at, chosen);
        END IF;
        RETURN QUERY
        WITH taken AS (
            UPDATE {schema}.job
            SET state = 'running',
                filed = CASE WHEN is_batch THEN 'ready' ELSE 'running' END,
                gate = '',
                attempt = least(job.attempt, 2147483646) + 1, -- as claim does
                fence = greatest(job.fence + 1, {schema}.micros(at)),
                token = by_token,
                session = by_session,
                claimed_at = at,
                progress = NULL,
                log = NULL
            WHERE job.id = ANY (chosen)
            RETURNING job.*
        ),
        granted AS (
            INSERT INTO {schema}.permit (gate, job, token, weight)
            SELECT 'fifo:' || taken.fifo, taken.id, NULL, 0 FROM taken -- no member of such a key has its turn
        )
        SELECT * FROM taken;
        GET DIAGNOSTICS number = ROW_COUNT;
    END IF;
    IF number < cardinality(h_id) THEN
        UPDATE {schema}.job
        SET state = 'ready', filed = 'ready', gate = ''
        WHERE job.id = ANY (ARRAY(
            SELECT job.id
            FROM {schema}.job
            WHERE job.id = ANY (h_id) AND job.state = 'blocked' AND job.gate = 'fifo:' || job.fifo
            ORDER BY job.id
            FOR UPDATE SKIP LOCKED
        ));
        woken := ARRAY(SELECT DISTINCT job.queue FROM {schema}.job WHERE job.id = ANY (h_id) AND job.state = 'ready');
        PERFORM {schema}.ring(woken, false);
    END IF;
END
$$;

-- running -> completed for jobs with gates: what finish.sql does, and the permits of all of them at once. Fenced by (id,
-- token), pairwise. Locks: the gates, sorted; then the job rows. Returns the ids that took, the gates that are
-- locked, and the FIFO keys of which a member has ended. NULL, and nothing is done, where
-- the transaction is not READ COMMITTED (each statement in here needs its own snapshot), or where a breaker counts one of
-- the ends, which core/gates does. Turns of FIFO keys are given on where `opens_turns`; else next_members does it.
CREATE FUNCTION {schema}.complete_gated(
    ids uuid[], tokens uuid[], results jsonb, result text, given timestamptz, opens_turns boolean DEFAULT true,
    OUT ended uuid[], OUT keys text[], OUT turns text[]
)
    LANGUAGE plpgsql
    SET enable_bitmapscan = off
    SET enable_seqscan = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    at timestamptz;
    usual date;
    opened text[];
    numbers bigint[];
    has_breaker boolean;
    setting text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    SELECT array_agg(DISTINCT held.gate) FILTER (WHERE held.gate IS NOT NULL), bool_or(held.has_breaker)
    INTO keys, has_breaker
    FROM (
        SELECT permit.gate::text, false AS has_breaker FROM {schema}.permit WHERE permit.job = ANY (ids)
        UNION ALL
        SELECT 'fifo:' || job.fifo, position('"breaker":' IN job.options) > 0 FROM {schema}.job WHERE job.id = ANY (ids)
    ) AS held;
    IF has_breaker THEN
        RETURN;
    END IF;
    setting := set_config('lock_timeout', '4s', true) || set_config('winch.completes', 'on', true);
    IF keys IS NOT NULL THEN
        -- Where all gates are limits and nothing is claimed under these locks, a claim need not wait.
        setting := {schema}.lock_gates(keys, CASE
            WHEN opens_turns AND NOT EXISTS (SELECT FROM unnest(keys) AS key WHERE NOT starts_with(key, 'limit:'))
            THEN 'return'
            ELSE 'open'
        END);
    END IF;
    at := coalesce(given, clock_timestamp());
    usual := {schema}.drop_on('completed', NULL, at);
    WITH gone AS (
        DELETE FROM {schema}.job
        WHERE job.id = ANY (ids)
            AND (job.id, job.token) IN (
                SELECT outcome.job, outcome.by_token FROM unnest(ids, tokens) AS outcome (job, by_token)
            )
        RETURNING
            id, created_at, run_at, fence, version, priority, attempt, crashes, rescues, is_suspect,
            is_given_id, queue, task, args, session, token, claimed_at, expires_at, cancel_requested_at,
            keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options, progress, checkpoint,
            log, history
    ),
    kept AS (
        INSERT INTO {schema}.archive (
            id, created_at, run_at, finished_at, fence, version, priority, attempt, crashes, rescues, drop_on,
            is_suspect, is_given_id, state, queue, task, args, session, ended_token, claimed_at, expires_at,
            cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
            progress, checkpoint, log, history, result, reason
        )
        SELECT
            id, created_at, run_at, at, fence, version, priority, attempt, crashes, rescues,
            CASE WHEN keep_seconds IS NULL THEN usual ELSE {schema}.drop_on('completed', keep_seconds, at) END,
            is_suspect, is_given_id, 'completed', queue, task, args, session, token, claimed_at, expires_at,
            cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
            progress, checkpoint, log, history,
            CASE WHEN results IS NULL THEN complete_gated.result ELSE results ->> id::text END, NULL
        FROM gone
    )
    SELECT coalesce(array_agg(gone.id), '{}'), array_agg(DISTINCT gone.fifo) FILTER (WHERE gone.fifo IS NOT NULL)
    INTO ended, turns
    FROM gone;
    -- The triggers of the delete have run, and let its jobs pass.
    setting := set_config('winch.completes', 'off', true);
    IF cardinality(ended) = 0 THEN
        RETURN;
    END IF;
    -- As finish does: where the whole call took, and it is no call for a few jobs.
    IF cardinality(ended) >= 16 AND cardinality(ended) = cardinality(ids) THEN
        UPDATE {schema}.lease
        SET unended = lease.unended - counted.number
        FROM (SELECT by_token, count(*) AS number FROM unnest(tokens) AS by_token GROUP BY by_token) AS counted
        WHERE lease.token = counted.by_token;
    END IF;
    WITH freed AS (
        DELETE FROM {schema}.permit WHERE permit.job = ANY (ended) RETURNING permit.gate, permit.weight
    )
    SELECT array_agg(opens.gate), array_agg(opens.number) INTO opened, numbers
    FROM (
        SELECT freed.gate::text AS gate, sum(greatest(freed.weight, 1))::bigint AS number
        FROM freed
        WHERE NOT starts_with(freed.gate, 'fifo:')
        GROUP BY freed.gate
        UNION ALL
        SELECT 'fifo:' || fifo, 1 FROM unnest(turns) AS fifo WHERE opens_turns
    ) AS opens;
    IF opened IS NOT NULL THEN
        -- A FIFO key whose last member has ended leaves nothing behind. admit.tidy removes other gates.
        IF {schema}.open_gates(opened, numbers) < cardinality(opened) THEN
            -- By the keys that were given: those in the table have a collation that the index of members has not.
            DELETE FROM {schema}.gate
            WHERE gate.key = ANY (ARRAY(
                SELECT ended.key
                FROM unnest(opened) AS ended (key)
                WHERE starts_with(ended.key, 'fifo:')
                    AND (
                        SELECT job.id
                        FROM {schema}.job
                        WHERE job.fifo = substr(ended.key, 6)
                        ORDER BY job.fifo, job.seq, job.id
                        LIMIT 1
                    ) IS NULL
            ));
        END IF;
    END IF;
END
$$;

-- running -> completed for jobs with gates, and ready | blocked -> running for the next members of their FIFO keys and the
-- next jobs under their limits, in one statement. The first row has the ids that took; the others have the jobs that were
-- claimed. No row, and nothing is done, where complete_gated does nothing.
CREATE FUNCTION {schema}.finish_members(
    ids uuid[], tokens uuid[], results jsonb, result text, by_session uuid, by_token uuid, served text[], known text[],
    most bigint, by_at_once bigint, batch_from bigint, given timestamptz
) RETURNS TABLE (
    took text[], sort_key bigint,
    id text, queue text, task text, args text, attempt integer, fence bigint, created_at timestamptz,
    run_at timestamptz, claimed_at timestamptz, version integer, is_suspect boolean, expires_at timestamptz, headers text,
    options text, checkpoint text
)
    LANGUAGE plpgsql
    SET enable_bitmapscan = off
    SET enable_seqscan = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    limits text[];
    done record;
    number bigint;
    woken text[];
    setting text;
BEGIN
    PERFORM FROM {schema}.session WHERE id = by_session AND ended_at IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        most := 0;
    END IF;
    -- No worker is woken before it is known what is taken here.
    setting := set_config('winch.claims', 'limits', true) || set_config('winch.opened', '{}', true);
    done := {schema}.complete_gated(ids, tokens, results, result, given, false);
    setting := set_config('winch.claims', 'off', true);
    IF done.ended IS NULL THEN
        RETURN;
    END IF;
    took := done.ended::text[];
    RETURN NEXT;
    IF done.turns IS NOT NULL THEN
        RETURN QUERY
        SELECT
            NULL::text[], job.sort_key, job.id::text, job.queue, job.task, job.args, job.attempt, job.fence, job.created_at, job.run_at,
            job.claimed_at, job.version, job.is_suspect, job.expires_at, job.headers, job.options, job.checkpoint
        FROM {schema}.next_members(
            done.turns, by_session, by_token, served, known, most, coalesce(given, clock_timestamp()), batch_from
        ) AS job;
        GET DIAGNOSTICS number = ROW_COUNT;
        most := most - number;
    END IF;
    limits := ARRAY(SELECT key FROM unnest(done.keys) AS key WHERE starts_with(key, 'limit:'));
    IF most > 0 AND cardinality(limits) > 0 AND cardinality(done.ended) > 0 THEN
        RETURN QUERY
        SELECT
            NULL::text[], job.place, job.id, job.queue, job.task, job.args, job.attempt, job.fence, job.created_at, job.run_at,
            job.claimed_at, job.version, job.is_suspect, job.expires_at, job.headers, job.options, job.checkpoint
        FROM {schema}.claim_gated(
            served, by_session, by_token, known, most, 0, by_at_once, 0, 0, batch_from, given, limits
        ) AS job
        WHERE job.id IS NOT NULL;
    END IF;
    woken := ARRAY(
        SELECT DISTINCT job.queue
        FROM {schema}.job
        WHERE job.id = ANY (current_setting('winch.opened')::uuid[]) AND job.state = 'ready'
    );
    IF cardinality(woken) > 0 THEN
        PERFORM {schema}.ring(woken, false);
    END IF;
END
$$;

-- Claims of jobs with gates, in one statement ---------------------------------------------------------

-- The row of a claim by the hundred, or more of its jobs: a claim may take from several queues.
CREATE FUNCTION {schema}.add_lease(by_token uuid, by_session uuid, at timestamptz, more uuid[]) RETURNS void
    LANGUAGE sql
AS $$
    INSERT INTO {schema}.lease (token, session, claimed_at, unended, ids)
    VALUES (by_token, by_session, at, cardinality(more), more)
    ON CONFLICT (token) DO UPDATE
    SET unended = lease.unended + excluded.unended,
        ids = lease.ids || excluded.ids;
$$;

-- The first ready jobs of a queue that a claim of `most` jobs tries, not locked: those with gates and `ahead` more, of each
-- tenant its share and `spare` more, and where the first plain ones stand. A tenant of which `share` jobs were read has
-- more. In a queue of strict order they are found by priority; jobs of tenants are then read whole and sorted.
CREATE FUNCTION {schema}.candidates(
    wanted text, is_by_priority boolean, known text[], most bigint, ahead bigint, spare bigint
) RETURNS TABLE (
    id uuid, at tid, sort_key bigint, attempt integer, options text, tenant text, is_plain boolean, priority integer,
    weight bigint, share bigint
)
    LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
BEGIN
    IF is_by_priority THEN
        -- The priorities by steps in their index.
        RETURN QUERY
        WITH RECURSIVE levels (priority) AS (
            (
                SELECT job.priority
                FROM {schema}.job
                WHERE job.queue = wanted AND job.filed = 'ready' AND job.state = 'ready' AND job.priority <> 0
                ORDER BY job.priority DESC
                LIMIT 1
            )
            UNION ALL
            SELECT next.priority
            FROM levels
            CROSS JOIN LATERAL (
                SELECT job.priority
                FROM {schema}.job
                WHERE job.queue = wanted AND job.filed = 'ready' AND job.state = 'ready' AND job.priority <> 0 AND job.priority < levels.priority
                ORDER BY job.priority DESC
                LIMIT 1
            ) AS next
        )
        SELECT
            first.id, first.at, first.sort_key, first.attempt, first.options, first.tenant, first.is_plain,
            first.priority, 1::bigint, NULL::bigint
        FROM levels
        CROSS JOIN LATERAL (
            SELECT
                job.id, job.ctid AS at, job.sort_key, job.attempt, job.options, job.tenant,
                job.gate IS NULL AS is_plain, job.priority
            FROM {schema}.job
            WHERE job.queue = wanted
                AND job.filed = 'ready'
                AND job.state = 'ready'
                AND job.priority <> 0
                AND job.priority = levels.priority
                AND job.tenant IS NULL
                AND (known IS NULL OR job.task = ANY (known))
            ORDER BY job.queue, job.priority, job.sort_key, job.id
            LIMIT most + ahead
        ) AS first
        ORDER BY first.priority DESC, first.sort_key, first.id
        LIMIT most + ahead;
    END IF;
    RETURN QUERY
    SELECT
        job.id, job.ctid, job.sort_key, job.attempt, job.options, job.tenant, false, job.priority, 1::bigint, NULL::bigint
    FROM {schema}.job
    WHERE job.queue = wanted
        AND job.filed = 'ready'
        AND job.state = 'ready'
        AND job.gate IS NOT NULL
        AND job.tenant IS NULL
        AND (job.priority = 0 OR NOT is_by_priority)
        AND (known IS NULL OR job.task = ANY (known))
    ORDER BY job.queue, job.sort_key, job.id
    LIMIT most + ahead;
    RETURN QUERY
    SELECT job.id, job.ctid, job.sort_key, job.attempt, NULL::text, NULL::text, true, job.priority, 1::bigint, NULL::bigint
    FROM {schema}.job
    WHERE job.queue = wanted
        AND job.filed = 'ready'
        AND job.gate IS NULL
        AND job.state = 'ready'
        AND (job.priority = 0 OR NOT is_by_priority)
        AND (known IS NULL OR job.task = ANY (known))
    ORDER BY job.queue, job.sort_key, job.id
    LIMIT most;
    IF NOT EXISTS (
        SELECT
        FROM {schema}.job
        WHERE job.queue = wanted AND job.filed = 'ready' AND job.state = 'ready' AND job.gate IS NOT NULL AND job.tenant IS NOT NULL
    ) THEN
        RETURN;
    END IF;
    IF is_by_priority THEN
        RETURN QUERY
        SELECT
            first.id, first.at, first.sort_key, first.attempt, first.options, first.tenant, false, first.priority,
            first.weight, NULL::bigint
        FROM (
            SELECT
                job.id, job.ctid AS at, job.sort_key, job.attempt, job.options, job.tenant, job.priority,
                greatest((limit_set.spec::jsonb ->> 'n')::bigint, 1) AS weight,
                row_number() OVER (PARTITION BY job.tenant ORDER BY job.priority DESC, job.sort_key, job.id) AS place
            FROM {schema}.job
            LEFT JOIN {schema}.limit_set ON limit_set.name = 'tenant:' || job.tenant
            WHERE job.queue = wanted
                AND job.filed = 'ready'
                AND job.state = 'ready'
                AND job.gate IS NOT NULL
                AND job.tenant IS NOT NULL
                AND (known IS NULL OR job.task = ANY (known))
        ) AS first
        WHERE first.place <= most + spare;
        RETURN;
    END IF;
    -- Of each tenant what its weight gives it of the claim, and `spare` more. Tenants whose jobs all run are counted, too: to
    -- tell them apart, all those jobs would be read. Each is read from its first live job: where many have ended, the index
    -- has their entries before that one, and to pass over them takes longer than all else here.
    RETURN QUERY
    WITH RECURSIVE tenants (tenant, sort_key, id) AS (
        (
            SELECT job.tenant, job.sort_key, job.id
            FROM {schema}.job
            WHERE job.queue = wanted AND job.filed = 'ready' AND job.gate IS NOT NULL AND job.tenant IS NOT NULL
            ORDER BY job.tenant, job.sort_key, job.id
            LIMIT 1
        )
        UNION ALL
        SELECT next.tenant, next.sort_key, next.id
        FROM tenants
        CROSS JOIN LATERAL (
            SELECT job.tenant, job.sort_key, job.id
            FROM {schema}.job
            WHERE job.queue = wanted
                AND job.filed = 'ready'
                AND job.gate IS NOT NULL
                AND job.tenant IS NOT NULL
                AND job.tenant > tenants.tenant
            ORDER BY job.tenant, job.sort_key, job.id
            LIMIT 1
        ) AS next
    ),
    weighed AS MATERIALIZED (
        SELECT tenants.*, greatest((limit_set.spec::jsonb ->> 'n')::bigint, 1) AS weight
        FROM tenants
        LEFT JOIN {schema}.limit_set ON limit_set.name = 'tenant:' || tenants.tenant
    ),
    shares AS MATERIALIZED (
        SELECT
            weighed.*,
            least(most, ceil(most * weighed.weight / sum(weighed.weight) OVER ())::bigint) + spare AS share
        FROM weighed
    )
    SELECT
        first.id, first.at, first.sort_key, first.attempt, first.options, first.tenant, false, first.priority,
        shares.weight, shares.share
    FROM shares
    CROSS JOIN LATERAL (
        SELECT job.id, job.ctid AS at, job.sort_key, job.attempt, job.options, job.tenant, job.priority
        FROM {schema}.job
        WHERE job.queue = wanted
            AND job.filed = 'ready'
            AND job.state = 'ready'
            AND job.gate IS NOT NULL
            AND job.tenant = shares.tenant
            AND (job.sort_key, job.id) >= (shares.sort_key, shares.id)
            AND (known IS NULL OR job.task = ANY (known))
        ORDER BY job.queue, job.tenant, job.sort_key, job.id
        LIMIT shares.share
    ) AS first;
END
$$;

-- The state of a queue's turns: how far each tenant is ahead of the virtual time, after `tenants` were served until `ended`.
CREATE FUNCTION {schema}.turns_after(
    ends jsonb, tenants text[], ended double precision[], virtual double precision
) RETURNS text
    LANGUAGE sql IMMUTABLE
    RETURN jsonb_build_object('ends', coalesce((
        SELECT jsonb_object_agg(line.tenant, round((line.ended - virtual)::text::numeric, 12))
        FROM (
            SELECT
                coalesce(before.key, now.tenant) AS tenant,
                coalesce(now.ended, before.value::double precision) AS ended
            FROM jsonb_each_text(ends) AS before
            FULL JOIN unnest(tenants, ended) AS now (tenant, ended) ON now.tenant = before.key
        ) AS line
        WHERE line.ended > virtual
    ), '{}'))::text;

-- Which of these candidates have the next `most` turns, where turns alone decide: in their order, NULL for the next plain job
-- (plain_places has its place), with their places in the table. The k-th job of a tenant is served at the tenant's own
-- virtual time and k steps, whatever is served before it, so the turns of all tenants are sorted once. The jobs are locked
-- from now on. NULL, and no turn is taken, where one of them is no longer there or is locked by another transaction. The
-- caller has locked the gate of the turns. Candidates stand tenant by tenant, in the order of their characters.
CREATE FUNCTION {schema}.draw_turns(
    wanted text, ids uuid[], places tid[], are_plain boolean[], tenants text[], weights bigint[], most bigint,
    OUT drawn uuid[], OUT drawn_at tid[], OUT plain_places bigint[]
)
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    turns jsonb;
    ends jsonb;
    virtual double precision;
    l_tenant text[];
    l_first bigint[];
    l_last bigint[];
    l_weight bigint[];
    l_ended double precision[];
    s_number bigint[];
    s_line bigint[];
    s_tag double precision[];
BEGIN
    turns := (SELECT gate.state::jsonb FROM {schema}.gate WHERE gate.key = 'tenants:' || wanted);
    ends := coalesce(turns -> 'ends', '{}');
    virtual := coalesce((turns ->> 'at')::double precision, 0);
    SELECT array_agg(line.tenant), array_agg(line.first), array_agg(line.last), array_agg(line.weight)
    INTO l_tenant, l_first, l_last, l_weight
    FROM (
        SELECT coalesce(job.tenant, '') AS tenant, min(job.number) AS first, max(job.number) AS last, min(job.weight) AS weight
        FROM unnest(tenants, weights) WITH ORDINALITY AS job (tenant, weight, number)
        GROUP BY coalesce(job.tenant, '')
        ORDER BY first
    ) AS line;
    SELECT array_agg(slot.number), array_agg(slot.line), array_agg(slot.tag)
    INTO s_number, s_line, s_tag
    FROM (
        SELECT
            job.number, line.line,
            sum(CASE
                WHEN job.number = line.first THEN greatest(virtual, coalesce((ends ->> line.tenant)::double precision, 0))
                ELSE 1::double precision / line.weight
            END) OVER (PARTITION BY line.line ORDER BY job.number) AS tag
        FROM unnest(l_tenant, l_first, l_last, l_weight) WITH ORDINALITY AS line (tenant, first, last, weight, line)
        CROSS JOIN LATERAL generate_series(line.first, line.last) AS job (number)
        ORDER BY tag, line, number
        LIMIT most
    ) AS slot;
    SELECT
        array_agg(CASE WHEN NOT are_plain[slot.number] THEN ids[slot.number] END),
        array_agg(CASE WHEN NOT are_plain[slot.number] THEN places[slot.number] END),
        coalesce(array_agg(slot.place) FILTER (WHERE are_plain[slot.number]), '{}')
    INTO drawn, drawn_at, plain_places
    FROM unnest(s_number) WITH ORDINALITY AS slot (number, place);
    -- By their places: a job that was changed since is somewhere else.
    IF (
        SELECT count(*)
        FROM (
            SELECT
            FROM unnest(drawn, drawn_at) AS chosen (id, place)
            JOIN {schema}.job ON job.ctid = chosen.place AND job.id = chosen.id AND job.state = 'ready'
            FOR UPDATE OF job SKIP LOCKED
        ) AS locked
    ) < cardinality(drawn) - cardinality(plain_places) THEN
        drawn := NULL;
        RETURN;
    END IF;
    virtual := s_tag[cardinality(s_tag)];
    l_ended := ARRAY(
        SELECT max(slot.tag) + 1::double precision / l_weight[line]
        FROM generate_subscripts(l_weight, 1) AS line
        LEFT JOIN unnest(s_line, s_tag) AS slot (line, tag) USING (line)
        GROUP BY line
        ORDER BY line
    );
    UPDATE {schema}.gate
    SET state = {schema}.turns_after(ends, l_tenant, l_ended, virtual)
    WHERE gate.key = 'tenants:' || wanted;
EXCEPTION WHEN data_exception THEN
    drawn := NULL; -- its state was damaged by hand
END
$$;

-- ready -> running, for the first plain jobs of a queue, as claim.sql does. The caller has locked the session and knows
-- that the queue is not paused and has no rule.
CREATE FUNCTION {schema}.take_plain(
    wanted text, by_session uuid, by_token uuid, known text[], most bigint, batch_from bigint, at timestamptz
) RETURNS SETOF {schema}.job
    LANGUAGE plpgsql
AS $$
DECLARE
    is_batch boolean := most >= batch_from;
    places tid[];
    chosen uuid[];
BEGIN
    SELECT array_agg(first.place), array_agg(first.id) INTO places, chosen
    FROM (
        SELECT job.ctid AS place, job.id
        FROM {schema}.job
        WHERE job.queue = wanted
            AND job.filed = 'ready'
            AND job.gate IS NULL
            AND job.state = 'ready'
            AND (known IS NULL OR job.task = ANY (known))
        ORDER BY job.queue, job.sort_key, job.id
        LIMIT most
        FOR UPDATE SKIP LOCKED
    ) AS first;
    IF chosen IS NULL THEN
        RETURN;
    END IF;
    IF is_batch THEN
        PERFORM {schema}.add_lease(by_token, by_session, at, chosen);
    END IF;
    RETURN QUERY
    UPDATE {schema}.job
    SET state = 'running',
        filed = CASE WHEN is_batch THEN job.filed ELSE 'running' END,
        attempt = least(job.attempt, 2147483646) + 1,
        fence = greatest(job.fence + 1, {schema}.micros(at)),
        token = by_token,
        session = by_session,
        claimed_at = at,
        progress = NULL,
        log = NULL
    WHERE job.ctid = ANY (places)
    RETURNING job.*;
END
$$;

-- The gates in these texts of options, as core/gates/uses.py reads them. Raises a data exception for text that was damaged
-- by hand.
CREATE FUNCTION {schema}.gate_uses(texts text[]) RETURNS TABLE (
    number bigint, place bigint, key text, kind text, name text, n bigint, per bigint, how text, burst bigint,
    weight bigint, is_for_retries boolean
)
    LANGUAGE plpgsql IMMUTABLE
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT
        given.number, use.place, use.key, use.kind, coalesce(use.name, ''), coalesce(use.n, 0), coalesce(use.per, 0),
        coalesce(use.how, 'sliding'), coalesce(use.burst, 0), coalesce(use.weight, 1), coalesce(use.is_for_retries, false)
    FROM unnest(texts) WITH ORDINALITY AS given (options, number)
    CROSS JOIN LATERAL ROWS FROM (
        jsonb_to_recordset(given.options::jsonb -> 'gates') AS (
            key text, kind text, name text, n bigint, per bigint, how text, burst bigint, weight bigint,
            is_for_retries boolean
        )
    ) WITH ORDINALITY AS use (key, kind, name, n, per, how, burst, weight, is_for_retries, place)
    WHERE starts_with(given.options, '{"gates":');
END
$$;

-- What a rate has left for a claim at this moment, as core/gates/rates.py reads its state: `used` of a window or `level` of
-- a bucket, and of a window what its next state begins with.
CREATE FUNCTION {schema}.rate_left(
    how text, n bigint, per bigint, burst bigint, state text, at bigint,
    OUT used bigint, OUT level double precision, OUT kept jsonb
)
    LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    parsed jsonb := coalesce(state, '{}')::jsonb;
    most double precision := CASE WHEN burst = 0 THEN n ELSE burst END;
BEGIN
    CASE how
        WHEN 'fixed' THEN
            used := CASE
                WHEN (parsed ->> 'from')::bigint = at / per * per THEN coalesce((parsed ->> 'used')::bigint, 0)
                ELSE 0
            END;
        WHEN 'bucket' THEN
            level := CASE
                WHEN parsed ->> 'level' IS NULL THEN most
                ELSE least(
                    most,
                    (parsed ->> 'level')::double precision
                        + greatest(0, at - coalesce((parsed ->> 'at')::bigint, 0))::double precision * n / per
                )
            END;
        ELSE
            -- Takes leave in their order: the first that still counts ends that.
            SELECT coalesce(jsonb_agg(take.entry ORDER BY take.place), '[]'), coalesce(sum((take.entry ->> 1)::bigint), 0)
            INTO kept, used
            FROM jsonb_array_elements(parsed -> 'takes') WITH ORDINALITY AS take (entry, place)
            WHERE take.place >= (
                SELECT min(young.place)
                FROM jsonb_array_elements(parsed -> 'takes') WITH ORDINALITY AS young (entry, place)
                WHERE (young.entry ->> 0)::bigint + per > at
            );
    END CASE;
END
$$;

-- The state of a rate from which `took` was taken at this moment.
CREATE FUNCTION {schema}.rate_state(
    how text, per bigint, used bigint, level double precision, kept jsonb, took bigint, at bigint
) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    last jsonb := kept -> -1;
BEGIN
    CASE
        WHEN how = 'fixed' THEN
            RETURN jsonb_build_object('from', at / per * per, 'used', used);
        WHEN how = 'bucket' THEN
            RETURN jsonb_build_object('level', level, 'at', at);
        WHEN took = 0 THEN
            NULL;
        WHEN (last ->> 0)::bigint = at THEN
            kept := jsonb_set(kept, '{-1,1}', to_jsonb((last ->> 1)::bigint + took));
        WHEN jsonb_array_length(kept) >= 256 AND at - (kept -> -2 ->> 0)::bigint < per / 256 THEN
            kept := jsonb_set(kept, '{-1}', jsonb_build_array(at, (last ->> 1)::bigint + took));
        ELSE
            kept := kept || jsonb_build_array(jsonb_build_array(at, took));
    END CASE;
    RETURN jsonb_build_object('takes', kept);
END
$$;

-- When a rate that has no room for this weight now will have it.
CREATE FUNCTION {schema}.rate_opens(
    how text, n bigint, per bigint, used bigint, level double precision, kept jsonb, weight bigint, at bigint
) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    CASE how
        WHEN 'fixed' THEN
            RETURN at / per * per + per;
        WHEN 'bucket' THEN
            RETURN at + least(greatest(1, ceil((weight - level) * per / n)), 3153600000000000)::bigint;
        ELSE
            RETURN coalesce((
                SELECT min(take.moment) + per
                FROM (
                    SELECT
                        (entry ->> 0)::bigint AS moment,
                        sum((entry ->> 1)::bigint) OVER (ORDER BY place) AS gone
                    FROM jsonb_array_elements(kept) WITH ORDINALITY AS take (entry, place)
                ) AS take
                WHERE take.gone >= used + weight - n
            ), at + per);
    END CASE;
END
$$;

-- ready -> running, for jobs of these queues in their order, with gates and without; ready -> blocked, for those that a
-- gate holds: what core/gates decides, decided in one statement, so that nothing is locked while the client computes.
--
-- Locks: the session FOR KEY SHARE; the gates of all candidates, once and sorted, so only one queue with gates is taken
-- from; then job rows, with SKIP LOCKED. Each statement in here has its own snapshot: what is read after the locks is as
-- the last holder of the gates left it.
--
-- Returns a row for each job that was claimed, and a last one without a job: whether a queue has gates or a rule
-- (has_permit), the number of the queue with which another call is to go on (rest; NULL: with none), whether core/gates
-- must decide there (is_rare), and how many of the jobs are under a scope (place). Sorted by place, the jobs of a queue are
-- in their order. No row, and nothing is done, where the transaction is not READ COMMITTED. With ahead = 0 no call goes on
-- with a queue whose first jobs are held.
-- Rare: a scope that is held or has just opened, and text that was damaged by hand.
--
-- Within a finish, which has locked the gates in `within`: only the first jobs of the first queue that has any, up to a job
-- that needs another gate or none. Nothing is taken where tenants take turns or the queue has a rule.
CREATE FUNCTION {schema}.claim_gated(
    served text[], by_session uuid, by_token uuid, known text[], most bigint, scoped_most bigint, by_at_once bigint,
    ahead bigint, spare bigint, batch_from bigint, given timestamptz, within text[] DEFAULT NULL
) RETURNS TABLE (
    place bigint, has_permit boolean, rest integer, is_rare boolean,
    id text, queue text, task text, args text, attempt integer, fence bigint, created_at timestamptz,
    run_at timestamptz, claimed_at timestamptz, version integer, is_suspect boolean, expires_at timestamptz, headers text,
    options text, checkpoint text
)
    LANGUAGE plpgsql
    SET enable_bitmapscan = off
    SET enable_seqscan = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    at timestamptz := coalesce(given, clock_timestamp());
    now_us bigint;
    got bigint := 0;
    number bigint;
    scoped bigint := 0;
    is_any boolean := false;
    has_locked boolean := false;
    is_odd boolean := false;
    is_again boolean;
    is_batch boolean;
    go_on integer;
    setting text;
    one record;
    had record;
    has_rate boolean;
    room bigint;
    is_ruled boolean;
    is_fair boolean;
    is_simple boolean;
    is_straight boolean;
    is_placed boolean;
    plain integer;
    settings jsonb;
    turns jsonb;
    ends jsonb;
    virtual double precision;
    -- Candidates, line by line. A line is a tenant, or all jobs without one.
    c_id uuid[];
    c_attempt integer[];
    c_options text[];
    c_text integer[];
    c_plain boolean[];
    c_line integer[];
    c_weight bigint[];
    c_share bigint[];
    c_tenant text[];
    c_at tid[];
    c_place tid[];
    l_tenant text[];
    l_weight bigint[];
    l_cut boolean[];
    l_next integer[];
    l_end integer[];
    l_ended double precision[];
    -- Slots of the draw: which line is served, at which virtual time.
    s_line integer[];
    s_tag double precision[];
    -- Texts of options, the uses of gates in them, and the gates.
    t_options text[];
    t_from integer[];
    t_to integer[];
    t_scoped boolean[];
    t_retried boolean[];
    t_gate integer[];
    is_scoped boolean;
    u_text bigint[];
    u_gate bigint[];
    u_kind text[];
    u_n bigint[];
    u_weight bigint[];
    u_retries boolean[];
    keys text[];
    g_key text[];
    g_limits text[];
    g_kind text[];
    g_name text[];
    g_how text[];
    g_n bigint[];
    g_per bigint[];
    g_burst bigint[];
    g_set boolean[];
    g_state text[];
    g_open bigint[];
    g_used bigint[];
    g_own bigint[];
    g_most bigint[];
    g_permits bigint[];
    g_turn uuid[];
    g_free uuid[];
    g_first uuid[];
    g_use integer[];
    g_room bigint[];
    g_level double precision[];
    g_kept jsonb[];
    g_took bigint[];
    g_least bigint[];
    -- What is decided. `drawn` has NULL for the next plain job.
    drawn uuid[];
    drawn_at tid[];
    drawn_text integer[];
    plain_places bigint[];
    held uuid[];
    held_at integer[];
    taken uuid[];
    line integer;
    c integer;
    t integer;
    g integer;
    closed integer;
    more bigint;
    next_at bigint;
    kind text;
    has_room boolean;
    opens boolean := false;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    PERFORM FROM {schema}.session WHERE session.id = by_session AND session.ended_at IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        place := 0;
        has_permit := false;
        is_rare := false;
        RETURN NEXT;
        RETURN;
    END IF;
    setting := set_config('lock_timeout', '4s', true);
    FOR one IN
        SELECT
            wanted.queue, wanted.number::integer AS number, queue.concurrency, coalesce(queue.is_strict, false) AS is_strict,
            queue.concurrency IS NOT NULL
                OR coalesce(queue.is_strict, false)
                OR EXISTS (
                    SELECT
                    FROM {schema}.job
                    WHERE job.queue = wanted.queue AND job.filed = 'ready' AND job.state = 'ready' AND job.gate IS NOT NULL
                        AND job.tenant IS NULL
                )
                OR EXISTS (
                    SELECT
                    FROM {schema}.job
                    WHERE job.queue = wanted.queue AND job.filed = 'ready' AND job.state = 'ready' AND job.gate IS NOT NULL
                        AND job.tenant IS NOT NULL
                ) AS has_gates
        FROM unnest(served) WITH ORDINALITY AS wanted (queue, number)
        LEFT JOIN {schema}.queue ON queue.name = wanted.queue
        WHERE queue.paused_at IS NULL
        ORDER BY wanted.number
    LOOP
        is_any := is_any OR one.has_gates;
        CONTINUE WHEN got >= most OR go_on IS NOT NULL;
        room := most - got;
        IF within IS NOT NULL THEN
            EXIT WHEN has_locked OR one.concurrency IS NOT NULL OR one.is_strict;
            IF NOT one.has_gates THEN
                EXIT WHEN EXISTS (
                    SELECT
                    FROM {schema}.job
                    WHERE job.queue = one.queue
                        AND job.filed = 'ready'
                        AND job.gate IS NULL
                        AND job.state = 'ready'
                        AND (known IS NULL OR job.task = ANY (known))
                );
                CONTINUE;
            END IF;
        END IF;
        IF NOT one.has_gates THEN
            RETURN QUERY
            SELECT
                job.sort_key, false, NULL::integer, false, job.id::text, job.queue, job.task, job.args, job.attempt, job.fence, job.created_at, job.run_at,
                job.claimed_at, job.version, job.is_suspect, job.expires_at, job.headers, job.options, job.checkpoint
            FROM {schema}.take_plain(one.queue, by_session, by_token, known, room, batch_from, at) AS job;
            GET DIAGNOSTICS number = ROW_COUNT;
            got := got + number;
            CONTINUE;
        END IF;
        -- A second queue needs gates that may sort before those that are locked: another call takes from it.
        IF has_locked THEN
            go_on := one.number;
            CONTINUE;
        END IF;
        -- Full, as far as is seen without the lock: the end of one of its jobs wakes its workers.
        CONTINUE WHEN one.concurrency <= (
            SELECT coalesce(sum(permit.weight), 0) FROM {schema}.permit WHERE permit.gate = 'queue:' || one.queue
        );
        is_ruled := one.concurrency IS NOT NULL OR one.is_strict;

        -- The candidates and their gates. Lines, texts and gates are numbered in the order of their characters.
        BEGIN
            -- Again where few were found, and tenants that had their share have more than the others.
            more := spare;
            FOR look IN 1..2 LOOP
                SELECT
                    array_agg(job.id), array_agg(job.attempt), array_agg(job.options), array_agg(job.is_plain),
                    array_agg(job.tenant), array_agg(job.weight), array_agg(job.share), array_agg(job.at),
                    bool_or(job.tenant IS NOT NULL)
                INTO c_id, c_attempt, c_options, c_plain, c_tenant, c_weight, c_share, c_at, is_fair
                FROM (
                    SELECT *
                    FROM {schema}.candidates(one.queue, one.is_strict, known, room, ahead, more) AS first
                    ORDER BY
                        coalesce(first.tenant, '') COLLATE "C", CASE WHEN one.is_strict THEN -first.priority ELSE 0 END,
                        first.sort_key, first.id
                ) AS job;
                EXIT WHEN is_fair IS NOT TRUE OR one.is_strict OR 2 * cardinality(c_id) > room;
                number := (
                    SELECT count(*)
                    FROM (SELECT FROM unnest(c_tenant, c_share) AS job (tenant, share) GROUP BY tenant HAVING count(*) >= min(share)) AS cut
                );
                EXIT WHEN number = 0;
                more := spare + room / number;
            END LOOP;
            t_options := ARRAY(
                SELECT DISTINCT options COLLATE "C" FROM unnest(c_options) AS options WHERE options IS NOT NULL ORDER BY 1
            );
            -- Mostly each text has one gate, and these are in the order of the texts: nothing is sorted then.
            SELECT
                coalesce(array_agg(use.number), '{}'), array_agg(use.kind), array_agg(use.n), array_agg(use.weight),
                array_agg(use.is_for_retries), coalesce(array_agg(use.key), '{}'), array_agg(use.name),
                array_agg(use.how), array_agg(use.per), array_agg(use.burst),
                coalesce(bool_and(use.kind IN ('limit', 'fifo') AND use.place = 1 AND use.is_after), false)
                    AND count(*) = cardinality(t_options)
            INTO u_text, u_kind, u_n, u_weight, u_retries, g_key, g_name, g_how, g_per, g_burst, is_straight
            FROM (
                SELECT
                    use.*,
                    use.key IS NOT NULL
                        AND coalesce(use.key COLLATE "C" > lag(use.key) OVER () COLLATE "C", use.number = 1) AS is_after
                FROM {schema}.gate_uses(t_options) AS use
            ) AS use;
            IF is_straight OR cardinality(u_text) = 0 THEN
                u_gate := u_text;
                g_kind := u_kind;
                g_n := u_n;
                is_odd := false;
            ELSE
                WITH uses AS MATERIALIZED (
                    SELECT use.*, dense_rank() OVER (ORDER BY use.key COLLATE "C") AS gate
                    FROM {schema}.gate_uses(t_options) AS use
                )
                SELECT own.*, gates.*
                INTO
                    u_text, u_gate, u_kind, u_n, u_weight, u_retries,
                    g_key, g_kind, g_name, g_how, g_n, g_per, g_burst, is_odd
                FROM (
                    SELECT
                        coalesce(array_agg(use.number), '{}'), array_agg(use.gate), array_agg(use.kind), array_agg(use.n),
                        array_agg(use.weight), array_agg(use.is_for_retries)
                    FROM (SELECT * FROM uses ORDER BY number, place) AS use
                ) AS own, (
                    SELECT
                        coalesce(array_agg(use.key), '{}'), array_agg(use.kind), array_agg(use.name), array_agg(use.how),
                        array_agg(use.n), array_agg(use.per), array_agg(use.burst),
                        bool_or(use.key IS NULL OR use.kind IS NULL OR use.kind NOT IN ('limit', 'rate', 'fifo', 'scope'))
                    FROM (SELECT DISTINCT ON (gate) * FROM uses ORDER BY gate, number, place) AS use
                ) AS gates;
            END IF;
        EXCEPTION WHEN data_exception THEN
            is_odd := true;
        END;
        IF is_odd THEN
            go_on := one.number;
            CONTINUE;
        END IF;
        CONTINUE WHEN c_id IS NULL;
        plain := cardinality(array_positions(c_plain, true));
        held := '{}';
        held_at := '{}';
        is_again := false;

        -- The locks.
        keys := g_key
            || CASE WHEN is_fair THEN ARRAY['tenants:' || one.queue] ELSE '{}' END
            || CASE WHEN one.concurrency IS NOT NULL THEN ARRAY['queue:' || one.queue] ELSE '{}' END;
        IF within IS NOT NULL THEN
            has_locked := true;
        ELSIF cardinality(keys) > 0 THEN
            PERFORM {schema}.lock_gates(keys, 'take');
            has_locked := true;
        END IF;
        at := coalesce(given, clock_timestamp());
        now_us := {schema}.micros(at);
        drawn := NULL;
        IF is_fair AND NOT is_ruled AND cardinality(u_text) = 0 AND within IS NULL THEN
            SELECT turn.* INTO drawn, drawn_at, plain_places
            FROM {schema}.draw_turns(one.queue, c_id, c_at, c_plain, c_tenant, c_weight, room) AS turn;
        END IF;

        -- What the gates have, and what they let through.
        <<decide>>
        BEGIN
            EXIT decide WHEN drawn IS NOT NULL;
            -- By hash: see the full joins below.
            IF cardinality(t_options) = 1 AND plain = 0 THEN
                c_text := array_fill(1, ARRAY[cardinality(c_id)]);
            ELSE
                c_text := ARRAY(
                    SELECT text.number
                    FROM unnest(c_options) WITH ORDINALITY AS job (options, number)
                    FULL JOIN unnest(t_options) WITH ORDINALITY AS text (options, number) ON text.options = job.options
                    ORDER BY job.number
                );
            END IF;
            IF is_fair THEN
                c_line := ARRAY(
                    SELECT dense_rank() OVER (ORDER BY coalesce(job.tenant, '') COLLATE "C")
                    FROM unnest(c_tenant) WITH ORDINALITY AS job (tenant, number)
                    ORDER BY job.number
                );
            ELSE
                c_line := array_fill(1, ARRAY[cardinality(c_id)]);
            END IF;
            IF within IS NOT NULL THEN
                EXIT WHEN is_fair;
                number := coalesce((
                    SELECT min(job.number) - 1
                    FROM unnest(c_text, c_plain) WITH ORDINALITY AS job (text, is_plain, number)
                    WHERE job.is_plain OR job.text IN (
                        SELECT use.text FROM unnest(u_text, u_gate) AS use (text, gate) WHERE g_key[use.gate] <> ALL (within)
                    )
                ), cardinality(c_id));
                EXIT WHEN number = 0;
                c_id := c_id[:number];
                c_attempt := c_attempt[:number];
                c_options := c_options[:number];
                c_text := c_text[:number];
                c_plain := c_plain[:number];
                c_line := c_line[:number];
                c_tenant := c_tenant[:number];
                c_weight := c_weight[:number];
                c_share := c_share[:number];
                plain := 0;
            END IF;

            g_limits := ARRAY(SELECT key FROM unnest(g_key, g_kind) AS wanted (key, kind) WHERE kind = 'limit');
            BEGIN
                -- The permits of limits. A full join is one by hash: the planner expects ten rows here, and would compare each
                -- gate with each. As gate_used has it; and what this session has, with its heaviest.
                SELECT
                    array_agg(gate.used), array_agg(gate.own), array_agg(gate.most), array_agg(gate.permits)
                INTO g_used, g_own, g_most, g_permits
                FROM (
                    SELECT
                        coalesce(held.used, 0) AS used, coalesce(held.own, 0) AS own, coalesce(held.most, 0) AS most,
                        coalesce(held.permits, 0) AS permits
                    FROM unnest(g_key) WITH ORDINALITY AS wanted (key, number)
                    FULL JOIN (
                        SELECT
                            one.gate,
                            sum(least(one.weight, one.at_once::bigint * one.most))::bigint AS used,
                            sum(one.permits)::bigint AS permits,
                            max(one.weight) FILTER (WHERE one.is_own) AS own,
                            max(one.most) FILTER (WHERE one.is_own) AS most
                        FROM (
                            SELECT
                                permit.gate, permit.at_once, count(*) AS permits, sum(permit.weight)::bigint AS weight,
                                max(permit.weight)::bigint AS most,
                                permit.session = by_session AND permit.at_once = by_at_once AS is_own
                            FROM {schema}.permit
                            WHERE permit.gate = ANY (g_limits)
                            GROUP BY permit.gate, permit.session, permit.at_once
                        ) AS one
                        GROUP BY one.gate
                    ) AS held ON held.gate = wanted.key
                    ORDER BY wanted.number
                ) AS gate;
                -- What is set for the fleet, once for each name: many keys have one.
                SELECT coalesce(jsonb_object_agg(limit_set.name, limit_set.spec::jsonb), '{}') INTO settings
                FROM {schema}.limit_set
                WHERE limit_set.name = ANY (ARRAY(SELECT DISTINCT name FROM unnest(g_name) AS name));
                is_odd := false;
                g_set := array_fill(settings <> '{}', ARRAY[cardinality(g_key)]);
                IF cardinality(g_limits) = cardinality(g_key) AND (
                    settings = '{}' OR (SELECT bool_and(name = g_name[1]) FROM unnest(g_name) AS name)
                ) THEN
                    g_state := array_fill(NULL::text, ARRAY[cardinality(g_key)]);
                    g_open := array_fill(NULL::bigint, ARRAY[cardinality(g_key)]);
                    g_turn := array_fill(NULL::uuid, ARRAY[cardinality(g_key)]);
                    g_first := g_turn;
                    IF settings <> '{}' THEN
                        g_n := array_fill((settings -> g_name[1] ->> 'n')::bigint, ARRAY[cardinality(g_key)]);
                    END IF;
                ELSE
                    SELECT
                        array_agg(gate.state), array_agg(gate.open_at), array_agg(gate.n), array_agg(gate.per),
                        array_agg(gate.how), array_agg(gate.burst), array_agg(gate.is_set), array_agg(gate.turn),
                        array_agg(gate.first),
                        bool_or(gate.kind = 'scope' AND coalesce((gate.state::jsonb ->> 'until')::bigint, 0) <> 0)
                    INTO g_state, g_open, g_n, g_per, g_how, g_burst, g_set, g_turn, g_first, is_odd
                    FROM (
                        SELECT
                            wanted.kind, gate.state, {schema}.micros(gate.open_at) AS open_at, wanted.spec IS NOT NULL AS is_set,
                            CASE WHEN wanted.spec IS NULL THEN wanted.n ELSE (wanted.spec ->> 'n')::bigint END AS n,
                            CASE WHEN wanted.spec IS NULL THEN wanted.per
                                ELSE coalesce((wanted.spec ->> 'per')::bigint, 0) END AS per,
                            CASE WHEN wanted.spec IS NULL THEN wanted.how
                                ELSE coalesce(wanted.spec ->> 'how', 'sliding') END AS how,
                            CASE WHEN wanted.spec IS NULL THEN wanted.burst
                                ELSE coalesce((wanted.spec ->> 'burst')::bigint, 0) END AS burst,
                            CASE wanted.kind WHEN 'fifo' THEN (
                                SELECT permit.job FROM {schema}.permit WHERE permit.gate = wanted.key AND permit.token IS NULL
                            ) END AS turn,
                            CASE wanted.kind WHEN 'fifo' THEN (
                                SELECT job.id
                                FROM {schema}.job
                                WHERE job.fifo = substr(wanted.key, 6)
                                ORDER BY job.fifo, job.seq, job.id
                                LIMIT 1
                            ) END AS first
                        FROM (
                            SELECT given.*, CASE WHEN settings ? given.name THEN settings -> given.name END AS spec
                            FROM unnest(g_key, g_kind, g_name, g_n, g_per, g_how, g_burst) WITH ORDINALITY
                                AS given (key, kind, name, n, per, how, burst, number)
                        ) AS wanted
                        LEFT JOIN {schema}.gate ON gate.key = CASE WHEN wanted.kind IN ('rate', 'scope') THEN wanted.key END
                        ORDER BY wanted.number
                    ) AS gate;
                END IF;
                g_level := array_fill(NULL::double precision, ARRAY[cardinality(g_key)]);
                g_kept := array_fill(NULL::jsonb, ARRAY[cardinality(g_key)]);
                g_took := array_fill(NULL::bigint, ARRAY[cardinality(g_key)]);
                g_least := g_took;
                has_rate := coalesce('rate' = ANY (g_kind), false);
                FOR g IN 1..CASE WHEN has_rate THEN cardinality(g_key) ELSE 0 END LOOP
                    CONTINUE WHEN g_kind[g] <> 'rate';
                    had := {schema}.rate_left(g_how[g], g_n[g], g_per[g], g_burst[g], g_state[g], now_us);
                    g_used[g] := had.used;
                    g_level[g] := had.level;
                    g_kept[g] := had.kept;
                    g_took[g] := 0;
                END LOOP;
                IF is_fair THEN
                    turns := (SELECT gate.state::jsonb FROM {schema}.gate WHERE gate.key = 'tenants:' || one.queue);
                    virtual := coalesce((turns ->> 'at')::double precision, 0);
                    ends := coalesce(turns -> 'ends', '{}');
                END IF;
            EXCEPTION WHEN data_exception THEN
                is_odd := true;
            END;
            IF is_odd THEN
                go_on := one.number;
                CONTINUE;
            END IF;
            IF one.concurrency IS NOT NULL THEN
                room := greatest(0, least(room, one.concurrency - (
                    SELECT coalesce(sum(permit.weight), 0) FROM {schema}.permit WHERE permit.gate = 'queue:' || one.queue
                )));
            END IF;
            -- Which candidates are still there, locked from now on: another claim may have had the gates before, and a job that
            -- something else has locked is left alone. A full join: see above.
            SELECT array_agg(found.place ORDER BY wanted.number) INTO c_place
            FROM unnest(c_id) WITH ORDINALITY AS wanted (id, number)
            FULL JOIN (
                SELECT job.id, job.ctid AS place
                FROM {schema}.job
                WHERE job.id = ANY (c_id) AND job.state = 'ready' AND (job.gate IS NOT NULL OR is_ruled)
                FOR UPDATE SKIP LOCKED
            ) AS found ON found.id = wanted.id;

            -- Where the texts have their uses. For free slots only: scopes and slow rates. A slow budget for retries counts only
            -- when the job is retried. A full join: see above.
            IF true = ANY (g_set) THEN
                u_n := ARRAY(
                    SELECT CASE WHEN use.kind <> 'scope' AND g_set[use.gate] THEN g_n[use.gate] ELSE use.n END
                    FROM unnest(u_gate, u_kind, u_n) WITH ORDINALITY AS use (gate, kind, n, place)
                    ORDER BY use.place
                );
            END IF;
            IF is_straight THEN
                t_from := u_text;
                t_to := u_text;
                t_gate := u_text;
                t_scoped := array_fill(false, ARRAY[cardinality(u_text)]);
                t_retried := t_scoped;
                is_simple := true;
            ELSE
                SELECT
                    array_agg(own.first), array_agg(own.last), array_agg(own.is_scoped), array_agg(own.is_retried),
                    array_agg(own.gate), coalesce(bool_and(own.is_simple), true)
                INTO t_from, t_to, t_scoped, t_retried, t_gate, is_simple
                FROM (
                    SELECT
                        given.text,
                        coalesce(min(use.place), 1)::integer AS first,
                        coalesce(max(use.place), 0)::integer AS last,
                        coalesce(bool_or(use.kind = 'scope' OR (use.is_slow AND NOT use.is_for_retries)), false) AS is_scoped,
                        coalesce(bool_or(use.is_slow AND use.is_for_retries), false) AS is_retried,
                        min(use.gate)::integer AS gate,
                        count(use.place) <= 1
                            AND coalesce(bool_and(NOT (use.kind = 'scope' OR use.is_slow OR use.is_for_retries)), true) AS is_simple
                    FROM generate_series(1, cardinality(t_options)) AS given (text)
                    FULL JOIN (
                        SELECT use.*, use.kind = 'rate' AND g_n[use.gate] * 1000000 < 1000 * g_per[use.gate] AS is_slow
                        FROM unnest(u_text, u_gate, u_kind, u_retries) WITH ORDINALITY
                            AS use (text, gate, kind, is_for_retries, place)
                    ) AS use ON use.text = given.text
                    GROUP BY given.text
                    ORDER BY given.text
                ) AS own;
            END IF;
            -- Each job has one gate and the jobs of a gate weigh the same: then sets decide, not one job after the other. How
            -- many jobs each gate has room for: a session that has all it runs at once takes no more of a limit.
            is_simple := is_simple AND NOT is_fair AND NOT is_ruled;
            IF is_simple THEN
                SELECT
                    array_agg(gate.use ORDER BY gate.number), coalesce(bool_and(gate.is_alike), true),
                    array_agg(
                        CASE
                            WHEN gate.n >= g_used[gate.number]
                                AND gate.fits >= by_at_once - least(by_at_once, g_own[gate.number] / gate.weight)
                            THEN room
                            ELSE gate.fits
                        END
                        ORDER BY gate.number
                    )
                INTO g_use, is_simple, g_room
                FROM (
                    SELECT
                        one.*,
                        CASE
                            WHEN g_kind[one.number] = 'limit' THEN greatest(one.n - g_used[one.number], 0) / one.weight
                            WHEN g_kind[one.number] <> 'rate' THEN NULL
                            WHEN g_how[one.number] = 'bucket'
                            THEN floor((g_level[one.number] + 1e-6::double precision) / one.weight)::bigint
                            ELSE greatest(g_n[one.number] - g_used[one.number], 0) / one.weight
                        END AS fits
                    FROM (
                        SELECT
                            use.gate AS number, max(use.place)::integer AS use, min(use.n) AS n,
                            nullif(greatest(min(use.weight), 0), 0) AS weight,
                            min(use.weight) > 0
                                AND min(use.weight) = max(use.weight)
                                AND min(use.n) = max(use.n)
                                AND g_most[use.gate] IN (0, min(use.weight)) AS is_alike
                        FROM unnest(u_gate, u_n, u_weight) WITH ORDINALITY AS use (gate, n, weight, place)
                        GROUP BY use.gate
                    ) AS one
                ) AS gate;
            END IF;
            -- The k-th job of a line is served at the line's own virtual time and k steps, whatever is served before it.
            IF is_fair THEN
                SELECT
                    array_agg(job.tenant), array_agg(job.weight), array_agg(job.is_cut), array_agg(job.first), array_agg(job.last)
                INTO l_tenant, l_weight, l_cut, l_next, l_end
                FROM (
                    SELECT
                        coalesce(min(job.tenant), '') AS tenant, min(job.weight) AS weight,
                        coalesce(count(*) >= min(job.share), false) AS is_cut, min(job.number) AS first, max(job.number) AS last
                    FROM unnest(c_line, c_tenant, c_weight, c_share) WITH ORDINALITY
                        AS job (line, tenant, weight, share, number)
                    GROUP BY job.line
                    ORDER BY job.line
                ) AS job;
                SELECT array_agg(slot.line), array_agg(slot.tag) INTO s_line, s_tag
                FROM (
                    SELECT
                        job.line, job.number,
                        sum(CASE
                            WHEN job.number = l_next[job.line]
                            THEN greatest(virtual, coalesce((ends ->> l_tenant[job.line])::double precision, 0))
                            ELSE 1::double precision / l_weight[job.line]
                        END) OVER (PARTITION BY job.line ORDER BY job.number) AS tag
                    FROM unnest(c_line) WITH ORDINALITY AS job (line, number)
                    ORDER BY tag, line, number
                ) AS slot;
            ELSE
                s_line := c_line;
                l_next := ARRAY[1];
                l_end := ARRAY[cardinality(c_id)];
                l_cut := ARRAY[false];
            END IF;

            drawn := '{}';
            drawn_at := '{}';
            drawn_text := '{}';
            plain_places := '{}';
            g_free := g_turn;
            l_ended := array_fill(NULL::double precision, ARRAY[cardinality(l_next)]);
            IF is_simple AND plain = 0 AND array_position(c_place, NULL) IS NULL AND (
                SELECT bool_and(g_kind[wanted.gate] <> 'fifo' AND wanted.number <= g_room[wanted.gate])
                FROM (SELECT t_gate[text] AS gate, count(*) AS number FROM unnest(c_text[:room]) AS text GROUP BY 1) AS wanted
                WHERE wanted.gate IS NOT NULL
            ) THEN
                -- The gates have room for as many candidates as are wanted.
                drawn := c_id[:room];
                drawn_at := c_place[:room];
                drawn_text := c_text[:room];
                has_room := true;
            ELSE
                has_room := false;
            END IF;
            IF is_simple AND NOT has_room THEN
                WITH asked AS MATERIALIZED (
                    SELECT
                        job.number, job.id, job.text, job.is_plain, job.place AS at, t_gate[job.text] AS gate,
                        row_number() OVER (PARTITION BY t_gate[job.text] ORDER BY job.number) AS place
                    FROM unnest(c_id, c_text, c_plain, c_place) WITH ORDINALITY AS job (id, text, is_plain, place, number)
                    WHERE job.is_plain OR job.place IS NOT NULL
                ),
                judged AS MATERIALIZED (
                    SELECT asked.*, sum(asked.passes::integer) OVER (ORDER BY asked.number) AS drawn
                    FROM (
                        SELECT
                            asked.*,
                            CASE
                                WHEN asked.is_plain OR asked.gate IS NULL THEN true
                                WHEN g_kind[asked.gate] <> 'fifo' THEN asked.place <= g_room[asked.gate]
                                WHEN g_turn[asked.gate] IS NULL AND g_first[asked.gate] IS NULL THEN asked.place = 1
                                ELSE coalesce(g_turn[asked.gate], g_first[asked.gate]) = asked.id
                            END AS passes
                        FROM asked
                    ) AS asked
                )
                SELECT
                    coalesce(array_agg(CASE WHEN NOT is_plain THEN id END)
                        FILTER (WHERE passes AND drawn <= room), '{}'),
                    coalesce(array_agg(CASE WHEN NOT is_plain THEN at END)
                        FILTER (WHERE passes AND drawn <= room), '{}'),
                    coalesce(array_agg(CASE WHEN is_plain THEN 0 ELSE text END)
                        FILTER (WHERE passes AND drawn <= room), '{}'),
                    coalesce(array_agg(drawn) FILTER (WHERE passes AND drawn <= room AND is_plain), '{}'),
                    coalesce(array_agg(id) FILTER (WHERE NOT passes AND drawn < room), '{}'),
                    coalesce(array_agg(gate) FILTER (WHERE NOT passes AND drawn < room), '{}'),
                    count(*) FILTER (WHERE NOT is_plain) < cardinality(c_plain) - plain
                INTO drawn, drawn_at, drawn_text, plain_places, held, held_at, is_again
                FROM (SELECT * FROM judged ORDER BY judged.number) AS judged;
            END IF;
            IF is_simple THEN
                IF has_rate THEN
                    FOR g, number IN
                        SELECT t_gate[text], count(*) FROM unnest(drawn_text) AS text WHERE text > 0 GROUP BY 1
                    LOOP
                        CONTINUE WHEN g_kind[g] <> 'rate';
                        g_took[g] := number * u_weight[g_use[g]];
                        g_used[g] := g_used[g] + g_took[g];
                        g_level[g] := round((g_level[g] - g_took[g])::text::numeric, 6);
                    END LOOP;
                    FOREACH g IN ARRAY ARRAY(SELECT DISTINCT unnest(held_at)) LOOP
                        CONTINUE WHEN g_kind[g] <> 'rate';
                        g_least[g] := coalesce(g_used[g], g_took[g]) + u_weight[g_use[g]];
                        next_at := {schema}.rate_opens(
                            g_how[g], g_n[g], g_per[g], g_used[g], g_level[g], g_kept[g], u_weight[g_use[g]], now_us
                        );
                        IF g_open[g] IS NULL OR g_open[g] > next_at THEN
                            g_open[g] := next_at;
                            opens := true;
                        END IF;
                    END LOOP;
                END IF;
                s_line := '{}';
            END IF;
            <<draw>>
            FOR slot IN 1..cardinality(s_line) LOOP
                EXIT WHEN cardinality(drawn) >= room;
                line := s_line[slot];
                LOOP
                    c := l_next[line];
                    IF c > l_end[line] THEN
                        -- Its tenant has more, which were not read: no other tenant goes before those.
                        is_again := is_again OR l_cut[line];
                        EXIT draw WHEN l_cut[line];
                        EXIT;
                    END IF;
                    l_next[line] := c + 1;
                    IF c_plain[c] THEN
                        IF is_ruled THEN
                            is_again := is_again OR c_place[c] IS NULL;
                            CONTINUE WHEN c_place[c] IS NULL;
                            drawn := drawn || c_id[c];
                            drawn_at := drawn_at || c_place[c];
                        ELSE
                            drawn := drawn || NULL::uuid;
                            drawn_at := drawn_at || NULL::tid;
                            plain_places := plain_places || cardinality(drawn)::bigint;
                        END IF;
                        drawn_text := drawn_text || 0;
                    ELSE
                        t := c_text[c];
                        is_scoped := t_scoped[t] OR (t_retried[t] AND c_attempt[c] > 0);
                        IF c_place[c] IS NULL THEN
                            is_again := true;
                            CONTINUE;
                        ELSIF t_from[t] < t_to[t] OR is_scoped THEN
                            -- Several gates: all must have room before something is taken from any of them.
                            CONTINUE WHEN is_scoped AND scoped >= scoped_most;
                            closed := NULL;
                            FOR u IN t_from[t]..t_to[t] LOOP
                                g := u_gate[u];
                                kind := u_kind[u];
                                IF kind = 'limit' THEN
                                    more := u_weight[u];
                                    IF by_at_once IS NOT NULL THEN
                                        more := least(g_own[g] + more, by_at_once * greatest(g_most[g], more))
                                            - least(g_own[g], by_at_once * g_most[g]);
                                    END IF;
                                    has_room := g_used[g] + more <= u_n[u];
                                ELSIF kind = 'fifo' THEN
                                    has_room := coalesce(g_turn[g], g_first[g], c_id[c]) = c_id[c];
                                ELSIF kind = 'rate' THEN
                                    has_room := (u_retries[u] AND c_attempt[c] = 0)
                                        OR CASE WHEN g_how[g] = 'bucket' THEN g_level[g] >= u_weight[u] - 1e-6::double precision
                                            ELSE g_used[g] + u_weight[u] <= g_n[g] END;
                                ELSE
                                    has_room := true; -- a scope that holds nothing
                                END IF;
                                IF NOT has_room THEN
                                    closed := u;
                                    EXIT;
                                END IF;
                            END LOOP;
                            IF closed IS NULL THEN
                                FOR u IN t_from[t]..t_to[t] LOOP
                                    g := u_gate[u];
                                    kind := u_kind[u];
                                    IF kind = 'fifo' THEN
                                        g_turn[g] := c_id[c];
                                    ELSIF kind = 'limit' THEN
                                        more := u_weight[u];
                                        IF by_at_once IS NOT NULL THEN
                                            more := least(g_own[g] + more, by_at_once * greatest(g_most[g], more))
                                                - least(g_own[g], by_at_once * g_most[g]);
                                            g_own[g] := g_own[g] + u_weight[u];
                                            g_most[g] := greatest(g_most[g], u_weight[u]);
                                        END IF;
                                        g_used[g] := g_used[g] + more;
                                    ELSIF kind = 'rate' AND (c_attempt[c] > 0 OR NOT u_retries[u]) THEN
                                        g_used[g] := g_used[g] + u_weight[u];
                                        g_took[g] := g_took[g] + u_weight[u];
                                        g_level[g] := round((g_level[g] - u_weight[u])::text::numeric, 6);
                                    END IF;
                                END LOOP;
                                scoped := scoped + is_scoped::integer;
                            END IF;
                        ELSIF t_from[t] = t_to[t] THEN
                            -- The same for one gate.
                            closed := t_from[t];
                            g := u_gate[closed];
                            kind := u_kind[closed];
                            IF kind = 'limit' THEN
                                more := u_weight[closed];
                                IF by_at_once IS NOT NULL THEN
                                    more := least(g_own[g] + more, by_at_once * greatest(g_most[g], more))
                                        - least(g_own[g], by_at_once * g_most[g]);
                                END IF;
                                IF g_used[g] + more <= u_n[closed] THEN
                                    g_used[g] := g_used[g] + more;
                                    IF by_at_once IS NOT NULL THEN
                                        g_own[g] := g_own[g] + u_weight[closed];
                                        g_most[g] := greatest(g_most[g], u_weight[closed]);
                                    END IF;
                                    closed := NULL;
                                END IF;
                            ELSIF kind = 'fifo' THEN
                                IF coalesce(g_turn[g], g_first[g], c_id[c]) = c_id[c] THEN
                                    g_turn[g] := c_id[c];
                                    closed := NULL;
                                END IF;
                            ELSIF u_retries[closed] AND c_attempt[c] = 0 THEN
                                closed := NULL;
                            ELSIF g_how[g] = 'bucket' THEN
                                IF g_level[g] >= u_weight[closed] - 1e-6::double precision THEN
                                    g_level[g] := round((g_level[g] - u_weight[closed])::text::numeric, 6);
                                    g_took[g] := g_took[g] + u_weight[closed];
                                    closed := NULL;
                                END IF;
                            ELSIF g_used[g] + u_weight[closed] <= g_n[g] THEN
                                g_used[g] := g_used[g] + u_weight[closed];
                                g_took[g] := g_took[g] + u_weight[closed];
                                closed := NULL;
                            END IF;
                        ELSE
                            closed := NULL; -- a tenant alone
                        END IF;
                        IF closed IS NOT NULL THEN
                            held := held || c_id[c];
                            held_at := held_at || g;
                            IF kind = 'rate' AND (
                                g_least[g] IS NULL OR g_least[g] > coalesce(g_used[g], g_took[g]) + u_weight[closed]
                            ) THEN
                                g_least[g] := coalesce(g_used[g], g_took[g]) + u_weight[closed];
                                next_at := {schema}.rate_opens(
                                    g_how[g], g_n[g], g_per[g], g_used[g], g_level[g], g_kept[g], u_weight[closed], now_us
                                );
                                IF g_open[g] IS NULL OR g_open[g] > next_at THEN
                                    g_open[g] := next_at;
                                    opens := true;
                                END IF;
                            END IF;
                            CONTINUE;
                        END IF;
                        drawn := drawn || c_id[c];
                        drawn_at := drawn_at || c_place[c];
                        drawn_text := drawn_text || t;
                    END IF;
                    IF is_fair THEN
                        virtual := s_tag[slot];
                        l_ended[line] := virtual + 1::double precision / l_weight[line];
                    END IF;
                    EXIT;
                END LOOP;
            END LOOP;
            is_again := is_again OR (
                cardinality(drawn) < most - got AND cardinality(held) > 0 AND cardinality(c_id) >= most - got + ahead
            );

            -- What the gates remember from now on.
            IF is_fair OR has_rate THEN
                UPDATE {schema}.gate
                SET state = new.state, open_at = to_timestamp(new.open_at / 1000000.0)
                FROM (
                    SELECT
                        wanted.key, wanted.open_at,
                        CASE
                            WHEN wanted.took = 0 THEN wanted.state
                            ELSE {schema}.rate_state(
                                wanted.how, wanted.per, wanted.used, wanted.level, wanted.kept, wanted.took, now_us
                            )
                        END AS state
                    FROM unnest(g_key, g_kind, g_state, g_open, g_how, g_per, g_used, g_level, g_kept, g_took, g_least)
                        AS wanted (key, kind, state, open_at, how, per, used, level, kept, took, least)
                    WHERE wanted.kind = 'rate' AND (wanted.took > 0 OR wanted.least IS NOT NULL)
                    UNION ALL
                    SELECT 'tenants:' || one.queue, NULL, {schema}.turns_after(ends, l_tenant, l_ended, virtual)
                    WHERE is_fair
                ) AS new
                WHERE gate.key = new.key;
            END IF;
        END decide;
        -- A claim without a free slot blocks nothing: mostly the jobs of its own worker hold the gates.
        IF cardinality(held) > 0 AND (ahead > 0 OR within IS NOT NULL) THEN
            -- An end that returns permits beside this claim does not see the jobs that it blocks. So it waits for such
            -- ends, and a job whose gate they have opened stays ready.
            keys := ARRAY(SELECT DISTINCT g_key[at] FROM unnest(held_at) AS at WHERE g_kind[at] = 'limit');
            IF cardinality(keys) > 0 AND within IS NULL THEN
                PERFORM {schema}.lock_gates(keys, 'open');
                keys := ARRAY(
                    SELECT g_key[at]
                    FROM (SELECT DISTINCT unnest(held_at) AS at) AS closed
                    WHERE g_kind[at] = 'limit'
                        AND g_permits[at] <> (SELECT count(*) FROM {schema}.permit WHERE permit.gate = g_key[at])
                );
                is_again := is_again OR cardinality(keys) > 0;
            ELSE
                keys := '{}';
            END IF;
            UPDATE {schema}.job
            SET state = 'blocked', filed = 'blocked', gate = waits.gate
            FROM (SELECT id, g_key[at] AS gate FROM unnest(held, held_at) AS waits (id, at)) AS waits
            WHERE job.id = waits.id AND waits.gate <> ALL (keys);
        END IF;

        -- What is taken.
        is_placed := is_fair OR one.is_strict;
        taken := CASE WHEN cardinality(plain_places) = 0 THEN drawn ELSE array_remove(drawn, NULL) END;
        IF cardinality(taken) > 0 THEN
            -- Without ON CONFLICT, which takes longer than the rest of the insert: nothing is there, unless a trigger was off.
            FOR try IN 1..CASE WHEN cardinality(u_text) > 0 OR one.concurrency IS NOT NULL THEN 2 ELSE 0 END LOOP
                BEGIN
                    INSERT INTO {schema}.permit (gate, job, token, weight, session, at_once)
                    SELECT
                        g_key[u_gate[use]], given.job, CASE u_kind[use] WHEN 'limit' THEN by_token END,
                        CASE u_kind[use] WHEN 'limit' THEN u_weight[use] ELSE 0 END, by_session,
                        CASE u_kind[use] WHEN 'limit' THEN by_at_once END
                    FROM unnest(drawn, drawn_text) AS given (job, text)
                    CROSS JOIN LATERAL generate_series(t_from[given.text], t_to[given.text]) AS use
                    WHERE u_kind[use] = 'limit' OR (u_kind[use] = 'fifo' AND g_free[u_gate[use]] IS NULL)
                    UNION ALL
                    SELECT 'queue:' || one.queue, job, by_token, 1, by_session, NULL
                    FROM unnest(taken) AS job
                    WHERE one.concurrency IS NOT NULL;
                    EXIT;
                EXCEPTION WHEN unique_violation THEN
                    DELETE FROM {schema}.permit WHERE permit.job = ANY (taken) AND permit.token IS NOT NULL;
                END;
            END LOOP;
            -- By the hundred, as plain jobs: no index is written to. A rule may change what the indexes have.
            is_batch := cardinality(taken) >= batch_from AND NOT is_ruled;
            IF is_batch THEN
                PERFORM {schema}.add_lease(by_token, by_session, at, taken);
            END IF;
            RETURN QUERY
            UPDATE {schema}.job
            SET state = 'running',
                filed = CASE WHEN is_batch THEN job.filed ELSE 'running' END,
                gate = CASE WHEN one.concurrency IS NULL THEN job.gate ELSE 'queue' END,
                attempt = least(job.attempt, 2147483646) + 1, -- as claim does
                fence = greatest(job.fence + 1, now_us),
                token = by_token,
                session = by_session,
                claimed_at = at,
                progress = NULL,
                log = NULL
            FROM unnest(drawn_at) WITH ORDINALITY AS chosen (tuple, place)
            WHERE job.ctid = chosen.tuple
            RETURNING
                CASE WHEN is_placed THEN chosen.place ELSE job.sort_key END,
                one.concurrency IS NOT NULL, NULL::integer, false, job.id::text, job.queue, job.task, job.args, job.attempt, job.fence, job.created_at, job.run_at,
                job.claimed_at, job.version, job.is_suspect, job.expires_at, job.headers, job.options, job.checkpoint;
            got := got + cardinality(taken);
        END IF;
        IF cardinality(plain_places) > 0 THEN
            RETURN QUERY
            SELECT
                CASE WHEN is_placed THEN plain_places[row_number() OVER (ORDER BY job.sort_key, job.id)] ELSE job.sort_key END,
                false, NULL::integer, false, job.id::text, job.queue, job.task, job.args, job.attempt, job.fence, job.created_at, job.run_at,
                job.claimed_at, job.version, job.is_suspect, job.expires_at, job.headers, job.options, job.checkpoint
            FROM {schema}.take_plain(
                one.queue, by_session, by_token, known, cardinality(plain_places)::bigint, batch_from, at
            ) AS job;
            GET DIAGNOSTICS number = ROW_COUNT;
            got := got + number;
        END IF;
        IF is_again AND got < most AND ahead > 0 THEN
            go_on := one.number;
        END IF;
    END LOOP;
    IF opens THEN
        PERFORM {schema}.ring(NULL, true);
    END IF;
    place := scoped;
    has_permit := is_any;
    rest := go_on;
    is_rare := is_odd;
    RETURN NEXT;
END
$$;

-- Jobs that wait for signals and for other jobs ------------------------------------------------------

CREATE TABLE {schema}.signal (
    name text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    payload text NOT NULL,
    sent_at timestamptz NOT NULL,
    taken_by uuid,
    wanted_by text,
    PRIMARY KEY (name, id),
    CONSTRAINT signal_taken_for_something CHECK ((taken_by IS NULL) = (wanted_by IS NULL))
);
CREATE INDEX signal_untaken ON {schema}.signal (name, sent_at, id) WHERE taken_by IS NULL;
COMMENT ON INDEX {schema}.signal_untaken IS 'serves take_signal and unblock';
CREATE INDEX signal_taken ON {schema}.signal (taken_by, wanted_by) WHERE taken_by IS NOT NULL;
COMMENT ON INDEX {schema}.signal_taken IS 'serves take_signal, for a job that has taken one before';
CREATE INDEX signal_sent ON {schema}.signal (sent_at);
COMMENT ON INDEX {schema}.signal_sent IS 'serves prune';

-- Which job waits for what. A row whose job is not blocked has no meaning; the next verb that reads it deletes it.
CREATE TABLE {schema}.waiting (
    job uuid NOT NULL,
    key text COLLATE "C" NOT NULL,
    is_enough boolean NOT NULL,
    until timestamptz,
    PRIMARY KEY (job, key)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
CREATE INDEX waiting_key ON {schema}.waiting (key);
COMMENT ON INDEX {schema}.waiting_key IS 'serves unblock';
CREATE INDEX waiting_until ON {schema}.waiting (until) WHERE until IS NOT NULL;
COMMENT ON INDEX {schema}.waiting_until IS 'serves unblock';

-- Keys that a job may wait for and that may have come: written with the change, taken up by unblock once that
-- is committed. Rows are only inserted and deleted, so no transaction waits for another here.
CREATE TABLE {schema}.recheck (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text COLLATE "C" NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- The end of a job that is waited for together with others wakes the promoter only where it may be the last: while
-- one of the others is not even claimed, all looks are in vain. The key is written down at every end, as before. Of
-- several that end at once the one that looks last finds none unclaimed, and rings.
CREATE FUNCTION {schema}.is_unclaimed_left(together text) RETURNS boolean
    LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF together !~ '^all:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{6}$' THEN
        RETURN false;
    END IF;
    -- The one with the last id: they are claimed in the order of their ids.
    RETURN coalesce((
        SELECT job.state = 'ready'
        FROM {schema}.job
        WHERE job.id BETWEEN (substr(together, 5) || '000000')::uuid AND (substr(together, 5) || 'ffffff')::uuid
        ORDER BY job.id DESC
        LIMIT 1
    ), false);
END
$$;

-- A job that others may wait for is final, or gone, whichever verb did it. A trigger, so that none can forget it;
-- the condition is all that other jobs pay. Jobs that are waited for together are written down once for each transaction:
-- the key is what their ids begin with. They mostly have the same headers, so these are compared as a whole. What this
-- transaction has written is a setting of its own, which a rollback takes back with the row; a row of another transaction
-- does not count, because unblock may have taken it up before this one commits.
CREATE FUNCTION {schema}.tell_waiting() RETURNS trigger
    LANGUAGE plpgsql
AS $$
DECLARE
    place integer;
    together text;
BEGIN
    IF current_setting('winch.noted', true) = OLD.headers THEN
        RETURN NULL;
    END IF;
    place := strpos(OLD.headers, '"winch-awaited":"all:');
    IF place > 0 THEN
        together := substr(OLD.headers, place + 17, 34);
        INSERT INTO {schema}.recheck (key) VALUES (together);
        IF NOT {schema}.is_unclaimed_left(together) THEN
            PERFORM {schema}.ring(NULL, true);
        END IF;
        IF strpos(OLD.headers, '+job"') = 0 THEN
            PERFORM set_config('winch.noted', OLD.headers, true);
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO {schema}.recheck (key) VALUES ('job:' || OLD.id);
    PERFORM {schema}.ring(NULL, true);
    RETURN NULL;
END
$$;

CREATE TRIGGER job_awaited AFTER DELETE ON {schema}.job
    FOR EACH ROW WHEN (OLD.headers IS NOT NULL AND strpos(OLD.headers, '"winch-awaited"') > 0)
    EXECUTE FUNCTION {schema}.tell_waiting();

-- Schedules: entries that enqueue jobs at windows of their own ---------------------------------------

-- `timing` is the key of the timing that next_at was found by. Serves due_schedules by its index.
CREATE TABLE {schema}.schedule (
    name text PRIMARY KEY,
    definition text NOT NULL,
    is_code boolean NOT NULL,
    created_at timestamptz NOT NULL,
    last_window timestamptz NOT NULL,
    next_at timestamptz,
    timing text,
    pending timestamptz,
    paused_at timestamptz,
    pause_reason text
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 200,
    vacuum_truncate = off
);
CREATE INDEX schedule_next ON {schema}.schedule (next_at) WHERE paused_at IS NULL;
COMMENT ON INDEX {schema}.schedule_next IS 'serves due_schedules';
CREATE INDEX schedule_pending ON {schema}.schedule (name) WHERE pending IS NOT NULL;
COMMENT ON INDEX {schema}.schedule_pending IS 'serves due_schedules';

-- What became of a window. That a job is stored only together with its row is why a window has one job.
CREATE TABLE {schema}.schedule_run (
    schedule text NOT NULL,
    window_at timestamptz NOT NULL,
    kind text NOT NULL,
    at timestamptz NOT NULL,
    job uuid,
    note text,
    PRIMARY KEY (schedule, window_at)
);

-- The schedules that the code of a session defines; gone with the session.
CREATE TABLE {schema}.declaration (
    session uuid NOT NULL REFERENCES {schema}.session (id) ON DELETE CASCADE,
    schedule text NOT NULL,
    definition text NOT NULL,
    timing text NOT NULL,
    PRIMARY KEY (session, schedule)
);
CREATE INDEX declaration_of_schedule ON {schema}.declaration (schedule);
COMMENT ON INDEX {schema}.declaration_of_schedule IS 'serves schedules, due_schedules and change_schedule';

-- Schedules with the definition that is in effect: that of the live session which started last among those
-- that declare it, else their own.
CREATE VIEW {schema}.schedule_in_effect AS
SELECT
    schedule.name, coalesce(latest.definition, schedule.definition) AS definition, schedule.is_code,
    schedule.created_at, schedule.last_window, coalesce(latest.sessions, 0)::integer AS declared_by,
    schedule.next_at, schedule.timing, schedule.pending, schedule.paused_at, schedule.pause_reason,
    latest.timing AS declared_timing
FROM {schema}.schedule
LEFT JOIN LATERAL (
    SELECT declaration.definition, declaration.timing, count(*) OVER () AS sessions
    FROM {schema}.declaration
    JOIN {schema}.session ON session.id = declaration.session
    WHERE declaration.schedule = schedule.name
        AND session.ended_at IS NULL
    ORDER BY session.started_at DESC, session.id DESC
    LIMIT 1
) AS latest ON true;

-- Beside the jobs ------------------------------------------------------------------------------------

-- What Winch notes beside the jobs: access tokens, the audit, rates by the minute and hour. Keys are compared
-- as bytes, so that their order is the same in every store and whatever the database's locale.
CREATE TABLE {schema}.book_line (
    book text NOT NULL,
    key text COLLATE "C" NOT NULL,
    body text NOT NULL,
    drop_at timestamptz,
    PRIMARY KEY (book, key)
);

CREATE INDEX book_line_drop ON {schema}.book_line (drop_at) WHERE drop_at IS NOT NULL;
COMMENT ON INDEX {schema}.book_line_drop IS 'serves write_lines, which removes some of what is over';

-- One number per queue to scale workers by: jobs that could run now, and those that do. A paused queue's
-- ready jobs could not, nor could those beyond a queue's concurrency. Names and columns stay as they are: scalers outside ask for them.

CREATE VIEW {schema}.backlog AS
SELECT
    job.queue,
    least(
        count(*) FILTER (WHERE job.state = 'running' OR queue.paused_at IS NULL),
        greatest(queue.concurrency, count(*) FILTER (WHERE job.state = 'running' OR queue.concurrency IS NULL))
    ) AS value
FROM {schema}.job
LEFT JOIN {schema}.queue ON queue.name = job.queue
WHERE job.state IN ('ready', 'running')
GROUP BY job.queue, queue.concurrency;

COMMENT ON VIEW {schema}.backlog IS 'jobs that could run now, by queue: what to scale workers by';

-- The same by the label that the jobs need, like gpu=h100: for pools of workers with labels. A job that needs two
-- labels counts under both; one that needs none counts under ''.

CREATE VIEW {schema}.backlog_by_label AS
SELECT
    job.queue,
    coalesce(needed.key || '=' || needed.value, '') AS label,
    count(*) FILTER (WHERE job.state = 'running' OR queue.paused_at IS NULL) AS value
FROM {schema}.job
LEFT JOIN {schema}.queue ON queue.name = job.queue
LEFT JOIN {schema}.book_line ON book_line.book = 'needs' AND book_line.key = job.task
LEFT JOIN LATERAL jsonb_each_text(book_line.body::jsonb -> 'labels') AS needed (key, value) ON true
WHERE job.state IN ('ready', 'running')
GROUP BY job.queue, label;

COMMENT ON VIEW {schema}.backlog_by_label IS 'jobs that could run now, by queue and needed label: what to scale pools of workers by';

-- Upkeep of the archive ------------------------------------------------------------------------------
-- Owned by the migrator and run with its rights, so that workers need none to create or drop tables.

-- Makes the partitions that final jobs will need: one for each of the next ten days, one for the first of
-- each of the next 25 months. Each is made apart and then attached, which lets finishes go on.
CREATE FUNCTION {schema}.make_partitions(now timestamptz) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '200ms'
AS $$
DECLARE
    today date := (now AT TIME ZONE 'UTC')::date;
    day date;
    name text;
    made integer := 0;
BEGIN
    FOR day IN
        SELECT today + n FROM generate_series(1, 10) AS n
        UNION
        SELECT (date_trunc('month', today::timestamp) + make_interval(months => n))::date
        FROM generate_series(1, 25) AS n
        ORDER BY 1
    LOOP
        name := 'archive_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass(format('{schema}.%I', name)) IS NOT NULL;
        -- Jobs of that day are in the net already: they stay there, and prune takes them one by one.
        CONTINUE WHEN EXISTS (SELECT FROM {schema}.archive_default WHERE drop_on = day);
        EXECUTE format('CREATE TABLE {schema}.%I (LIKE {schema}.archive INCLUDING ALL)', name);
        EXECUTE format(
            'ALTER TABLE {schema}.archive ATTACH PARTITION {schema}.%I FOR VALUES FROM (%L) TO (%L)',
            name, day, day + 1
        );
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;

-- Final jobs that are still needed are kept past their time: their parent is live, a job waits for their key, or a
-- live member of their flow was stored with members before it. All ids of one flow begin alike.
CREATE FUNCTION {schema}.still_awaited(headers text) RETURNS boolean
    LANGUAGE plpgsql STABLE
AS $$
DECLARE
    awaited text := substring(headers FROM '"winch-awaited":"([^"]*)"');
    flow text := substring(headers FROM '"winch-flow":"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22})"');
BEGIN
    IF starts_with(awaited, 'all:') THEN
        IF EXISTS (SELECT FROM {schema}.waiting WHERE key = left(awaited, 34)) THEN
            RETURN true;
        END IF;
    ELSIF awaited ~ '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' THEN
        IF EXISTS (SELECT FROM {schema}.job WHERE id = awaited::uuid) THEN
            RETURN true;
        END IF;
    END IF;
    RETURN flow IS NOT NULL AND EXISTS (
        SELECT
        FROM {schema}.job
        WHERE id BETWEEN (left(flow, 13) || '-0000-0000-000000000000')::uuid
                AND (left(flow, 13) || '-ffff-ffff-ffffffffffff')::uuid
            AND strpos(job.headers, '"winch-inputs"') > 0
            AND strpos(job.headers, flow) > 0
    );
END
$$;

-- Removes final jobs whose keeping time is over and returns how many: partitions whose day has come are
-- dropped whole. In a small partition whose day is still to come the jobs go one by one, at most `most` of
-- them, so that a small store keeps its times exactly; in a big one they wait for the day.
CREATE FUNCTION {schema}.prune_archive(now timestamptz, most integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '200ms'
AS $$
DECLARE
    utc timestamp := now AT TIME ZONE 'UTC';
    part record;
    gone bigint;
    total bigint := 0;
BEGIN
    -- One at a time: two would only wait for each other's locks.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('{schema} winch prune', 0)) THEN
        RETURN 0;
    END IF;
    BEGIN
        PERFORM {schema}.make_partitions(now);
    EXCEPTION WHEN lock_not_available THEN
        NULL; -- another session reads the default partition for long; there is time until tomorrow
    END;
    -- Jobs that are still needed leave the partitions that are about to go. No more jobs come into these.
    UPDATE {schema}.archive
    SET drop_on = utc::date + 2
    WHERE drop_on <= utc::date
        AND strpos(headers, '"winch-awaited":"') > 0
        AND {schema}.still_awaited(headers);
    FOR part IN
        SELECT
            child.oid::regclass AS name,
            CASE WHEN child.relname ~ '^archive_[0-9]{8}$'
                THEN to_date(right(child.relname, 8), 'YYYYMMDD') END AS day,
            pg_relation_size(child.oid) < 16777216 AS is_small,
            child.reltuples
        FROM pg_inherits
        JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
        WHERE pg_inherits.inhparent = '{schema}.archive'::regclass
        ORDER BY day
    LOOP
        gone := 0;
        IF part.day <= utc::date THEN
            BEGIN
                -- The lock before the count, so that nothing is dropped uncounted.
                LOCK TABLE {schema}.archive IN ACCESS EXCLUSIVE MODE;
                EXECUTE format(
                    'DELETE FROM {schema}.given_id WHERE id IN (SELECT id FROM %s WHERE is_given_id)',
                    part.name
                );
                IF part.is_small THEN
                    EXECUTE format('SELECT count(*) FROM %s', part.name) INTO gone;
                ELSE
                    gone := greatest(part.reltuples::bigint, 0);
                END IF;
                EXECUTE format('DROP TABLE %s', part.name);
            EXCEPTION WHEN lock_not_available THEN
                gone := 0; -- another session reads the archive for long (a dump); the next call tries again
            END;
        ELSIF total < most
            -- Only these may hold jobs whose time is over although the partition's day has not come.
            AND (part.day IS NULL
                OR part.day <= utc::date + 1
                OR part.day = (date_trunc('month', utc) + interval '1 month')::date)
        THEN
            IF part.is_small THEN
                EXECUTE format(
                    'WITH over AS (
                        SELECT ctid FROM %1$s
                        WHERE {schema}.keep_until(state, keep_seconds, finished_at) <= $1
                            AND (strpos(headers, ''"winch-awaited":"'') > 0
                                AND {schema}.still_awaited(headers)) IS NOT TRUE
                        LIMIT $2
                    ),
                    gone AS (DELETE FROM %1$s WHERE ctid = ANY (ARRAY(SELECT ctid FROM over))
                        RETURNING id, is_given_id),
                    freed AS (DELETE FROM {schema}.given_id
                        WHERE id IN (SELECT id FROM gone WHERE is_given_id))
                    SELECT count(*) FROM gone',
                    part.name
                ) INTO gone USING utc, most - total;
            ELSIF part.day IS NULL THEN
                EXECUTE format(
                    'WITH over AS (SELECT ctid FROM %1$s WHERE drop_on <= $1 LIMIT $2),
                    gone AS (DELETE FROM %1$s WHERE ctid = ANY (ARRAY(SELECT ctid FROM over))
                        RETURNING id, is_given_id),
                    freed AS (DELETE FROM {schema}.given_id
                        WHERE id IN (SELECT id FROM gone WHERE is_given_id))
                    SELECT count(*) FROM gone',
                    part.name
                ) INTO gone USING utc::date, most - total;
            END IF;
        END IF;
        total := total + gone;
    END LOOP;
    RETURN total;
END
$$;

SELECT {schema}.make_partitions(clock_timestamp());

-- A table of which nothing is known is taken for ten pages, and gone through by its index; most have one page.
ANALYZE {schema}.queue;
