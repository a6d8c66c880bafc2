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
    id uuid PRIMARY KEY,
    created_at timestamptz NOT NULL,
    run_at timestamptz NOT NULL,
    sort_key bigint NOT NULL,
    fence bigint NOT NULL DEFAULT 0,
    version integer NOT NULL,
    priority integer NOT NULL,
    attempt integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    rescues integer NOT NULL DEFAULT 0,
    is_suspect boolean NOT NULL DEFAULT false,
    is_given_id boolean NOT NULL DEFAULT false,
    state text NOT NULL,
    queue text NOT NULL,
    task text NOT NULL,
    args text NOT NULL,
    token uuid,
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
    -- NULL: a plain job. Else it has gates: '' while it does not wait, and the key of the gate while it is blocked.
    gate text COLLATE "C",
    -- Whether it has done what must be undone when it is cancelled. NULL for most.
    has_undo boolean,
    -- What the indexes have the job as: its state, or still `ready` while a claim by the hundred runs it. So such a
    -- claim changes no column that an index needs, and the row is replaced in its own page.
    filed text NOT NULL DEFAULT 'ready',
    -- The number of a member of a FIFO key: see next_seq.
    seq bigint
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
COMMENT ON INDEX {schema}.job_gated IS 'serves claim and explain of jobs with gates';
CREATE INDEX job_tenant ON {schema}.job (queue, tenant, sort_key, id)
    WHERE filed = 'ready' AND gate IS NOT NULL AND tenant IS NOT NULL;
COMMENT ON INDEX {schema}.job_tenant IS 'serves claim and explain of jobs with tenants';
-- Most jobs have the priority 0 and are not in it.
CREATE INDEX job_priority ON {schema}.job (queue, priority, sort_key, id) WHERE filed = 'ready' AND priority <> 0;
COMMENT ON INDEX {schema}.job_priority IS 'serves claim of queues with strict order';
CREATE INDEX job_blocked ON {schema}.job (gate, sort_key, id) WHERE filed = 'blocked';
COMMENT ON INDEX {schema}.job_blocked IS 'serves admit, explain and counts';
CREATE INDEX job_fifo ON {schema}.job (fifo, seq, id) WHERE fifo IS NOT NULL;
COMMENT ON INDEX {schema}.job_fifo IS 'serves claim and admit: who is first of a FIFO key';
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
    result text,
    reason text,
    fingerprint text, -- of dead jobs only
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

-- The safety net: whatever finds no partition of its own, because it is kept for more than two years or
-- because nobody has made partitions ahead for a while.
CREATE TABLE {schema}.archive_default PARTITION OF {schema}.archive DEFAULT;
CREATE INDEX archive_default_drop_on ON {schema}.archive_default (drop_on);
COMMENT ON INDEX {schema}.archive_default_drop_on IS 'serves prune';

-- Ids and unique keys --------------------------------------------------------------------------------

-- Ids that callers gave: they stay in place while a finish moves the job from one table to the other.
CREATE TABLE {schema}.given_id (
    id uuid PRIMARY KEY
);

-- Unique keys and the live jobs that hold them. A table of its own: who inserts second waits for the first to
-- commit or roll back, also while a finish moves the job. Jobs without a key never touch it.
CREATE TABLE {schema}.unique_key (
    key text PRIMARY KEY,
    job uuid NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- A key is free when its job leaves the live jobs, whichever verb (or person) takes it away. A trigger, so
-- that none can forget it; the condition is all that a job without a key pays. Never waits: nobody but its
-- holder's own end touches a committed key, and that end has the job's row.
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
    CONSTRAINT session_end_has_reason CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) WITH (
    -- Room for beats to replace the row in its own page. No column that a beat writes has an index.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- Settings of queues, and until when somebody waits for their jobs. The row named '' (no queue can be) is
-- for those who wait for due jobs.
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

-- Wakes those who wait for jobs of these queues, and with `is_due` those who wait for due jobs; tells
-- nobody when nobody waits, because a NOTIFY takes a lock of the whole database at commit. Who waits is a
-- matter of real time, whatever time the verb was given. Too long a list of queues rings for all ('[]').
-- Wake-ups for due jobs have a channel of their own, too: a supervisor that waits for those need not hear of every job.
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
-- who completes them counts it down. The row goes when none is left, or rescue has filed those that are.
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

-- Offers: claims that wait in the store. A worker that found nothing leaves one, and who stores a plain job while it
-- stands hands the job over in the same write: claimed under the offer's token, and told on the worker's own channel.
-- The worker is spared a claim and the disk a commit. docs/protocol.md has what a lost word means.
--
-- UNLOGGED, because an offer is nothing but a chance: after a crash there are none. Whose worker is gone ends by its
-- time, or because its session has ended.
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

-- Takes an offer for a plain job that is about to be stored, stores the job as claimed under it, and notifies the worker;
-- rings for the queue where there is none. Locks: an offer, and its session FOR KEY SHARE, past offers that other
-- transactions have and sessions that are about to end. Waits for no lock. A trigger, and with the rights of its owner:
-- the token of the claim goes into the row and to the worker alone. A producer, which may insert jobs and read neither
-- offers nor tokens, never sees it; with it, it could end the worker's claims.
CREATE FUNCTION {schema}.hand_over() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    taken {schema}.offer;
    word text;
BEGIN
    NEW.fence := 0;
    DELETE FROM {schema}.offer
    WHERE ctid = (
        SELECT offer.ctid
        FROM {schema}.offer
        JOIN {schema}.session ON session.id = offer.session AND session.ended_at IS NULL
        WHERE offer.queue = NEW.queue
            AND offer.until > clock_timestamp()
            AND (offer.tasks IS NULL OR NEW.task = ANY (offer.tasks))
            AND NEW.state = 'ready'
            AND NEW.gate IS NULL
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
    word := json_build_array(
        taken.token, NEW.id, NEW.queue, NEW.task, NEW.args, NEW.version, NEW.fence
    )::text;
    -- A notification has room for 8,000 bytes. The worker looks up what it does not receive.
    PERFORM pg_notify(
        taken.channel,
        CASE WHEN octet_length(word) > 7900 THEN json_build_array(taken.token)::text ELSE word END
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

-- The row that is locked before anybody takes, gives back or opens; and what a gate remembers: of a rate what was
-- taken, of a scope until when it is held, of a queue with tenants whose turn it is. open_at: when to look again
-- for those who wait.
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

-- Who may run: with a token until that claim ends, without one (the turn of a FIFO key) until the job is final.
CREATE TABLE {schema}.permit (
    gate text COLLATE "C" NOT NULL,
    job uuid NOT NULL,
    token uuid,
    weight integer NOT NULL,
    PRIMARY KEY (gate, job)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
CREATE INDEX permit_of_job ON {schema}.permit (job);
COMMENT ON INDEX {schema}.permit_of_job IS 'serves whatever ends a claim';

-- Limits, rates and weights as they are set for the whole fleet, by name.
CREATE TABLE {schema}.limit_set (
    name text PRIMARY KEY,
    spec text NOT NULL,
    is_live boolean NOT NULL,
    set_by text NOT NULL,
    set_at timestamptz NOT NULL
);

-- Whoever stores a job, its options tell that it has gates. They are looked at here and not in the condition, which is
-- read anew from its text, too, and is all that a plain job pays.
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

-- Locks gates, in the order of their keys; makes those that are missing. Again where somebody removed one while
-- it was waited for.
CREATE FUNCTION {schema}.lock_gates(keys text[]) RETURNS integer
    LANGUAGE plpgsql
AS $$
DECLARE
    wanted integer := (SELECT count(DISTINCT key) FROM unnest(keys) AS key);
    locked integer;
BEGIN
    -- A client that is stopped before it commits must not hold gates for long: the server ends its transaction.
    PERFORM set_config('idle_in_transaction_session_timeout', '2s', true);
    LOOP
        PERFORM FROM {schema}.gate WHERE key = ANY (keys) ORDER BY key FOR UPDATE;
        GET DIAGNOSTICS locked = ROW_COUNT;
        EXIT WHEN locked >= wanted;
        INSERT INTO {schema}.gate (key)
        SELECT DISTINCT key COLLATE "C" AS key FROM unnest(keys) AS key ORDER BY key
        ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN locked;
END
$$;

-- blocked -> ready, for up to `most` of those who wait at a gate, or the first member of a FIFO key when the turn
-- is free. Whoever calls has locked the gate. A job that is locked is passed over: who has it opens the gate too.
-- Jobs that wait for the concurrency of their queue are ready: for those, workers are woken.
CREATE FUNCTION {schema}.open_gate(opened text, most integer) RETURNS integer
    LANGUAGE plpgsql
AS $$
DECLARE
    chosen uuid[];
    woken text[];
BEGIN
    IF starts_with(opened, 'queue:') THEN
        PERFORM {schema}.ring(ARRAY[substr(opened, 7)], false);
        RETURN 0;
    END IF;
    IF starts_with(opened, 'fifo:') THEN
        IF EXISTS (SELECT FROM {schema}.permit WHERE gate = opened AND token IS NULL) THEN
            RETURN 0;
        END IF;
        chosen := ARRAY(
            SELECT id FROM {schema}.job WHERE fifo = substr(opened, 6) ORDER BY seq, id LIMIT 1
        );
        chosen := ARRAY(
            SELECT id
            FROM {schema}.job
            WHERE id = ANY (chosen) AND state = 'blocked' AND gate = opened
            FOR UPDATE SKIP LOCKED
        );
    ELSE
        chosen := ARRAY(
            SELECT id
            FROM {schema}.job
            WHERE filed = 'blocked' AND gate = opened
            ORDER BY gate, sort_key, id
            LIMIT most
            FOR UPDATE SKIP LOCKED
        );
    END IF;
    IF cardinality(chosen) = 0 THEN
        RETURN 0;
    END IF;
    WITH admitted AS (
        UPDATE {schema}.job SET state = 'ready', filed = 'ready', gate = '' WHERE id = ANY (chosen)
        RETURNING queue
    )
    SELECT array_agg(DISTINCT queue) INTO woken FROM admitted;
    -- A finish that claims wakes workers itself, for the members that it does not take.
    IF NOT starts_with(opened, 'fifo:') OR current_setting('winch.claims', true) IS DISTINCT FROM 'on' THEN
        PERFORM {schema}.ring(woken, false);
    END IF;
    RETURN cardinality(chosen);
END
$$;

-- A permit ends with its claim, a turn with its job, whichever verb (or person) ends them: a trigger, so that none
-- can forget it. It locks the gates after the job's row; finish, rescue and end_session, which end many at once, lock
-- them before (admit.lock, admit.lock_running), and a claim waits for no job. What is left of cycles, such as a
-- delete beside a finish, the server breaks and the pool repeats.
CREATE FUNCTION {schema}.leave_gates() RETURNS trigger
    LANGUAGE plpgsql
AS $$
DECLARE
    is_gone boolean := TG_OP = 'DELETE';
    keeps_turn boolean := false;
    held record;
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
    FOR held IN
        DELETE FROM {schema}.permit
        WHERE job = OLD.id
            AND (token = OLD.token OR (is_gone AND NOT (keeps_turn AND token IS NULL)))
        RETURNING gate, weight
    LOOP
        PERFORM {schema}.open_gate(held.gate, greatest(held.weight, 1));
    END LOOP;
    IF is_gone AND OLD.fifo IS NOT NULL AND NOT keeps_turn THEN
        PERFORM {schema}.open_gate('fifo:' || OLD.fifo, 1);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER job_leaves_gates AFTER UPDATE ON {schema}.job
    FOR EACH ROW WHEN (OLD.gate IS NOT NULL AND OLD.state = 'running' AND NEW.state <> 'running')
    EXECUTE FUNCTION {schema}.leave_gates();

CREATE TRIGGER job_is_gone_from_gates AFTER DELETE ON {schema}.job
    FOR EACH ROW WHEN (OLD.gate IS NOT NULL)
    EXECUTE FUNCTION {schema}.leave_gates();

-- ready -> running, for the first members of these FIFO keys, which other members have left: those that a claim
-- with these parameters would take first. The others wake their workers. Whoever calls has locked the session FOR KEY
-- SHARE, then the gates; most = 0 where the session has ended. Only members without another gate are taken: what
-- core/gates decides about any other is not repeated here.
CREATE FUNCTION {schema}.next_members(
    keys text[], by_session uuid, by_token uuid, served text[], known text[], most bigint, at timestamptz
) RETURNS SETOF {schema}.job
    LANGUAGE plpgsql
AS $$
DECLARE
    heads uuid[];
    fit uuid[];
    chosen uuid[] := '{}';
    taken uuid[] := '{}';
    served_queue text;
    one uuid;
    woken text[];
BEGIN
    heads := ARRAY(
        SELECT member.id
        FROM unnest(keys) AS wanted (key)
        CROSS JOIN LATERAL (
            SELECT job.id, job.state
            FROM {schema}.job
            WHERE job.fifo = wanted.key
            ORDER BY job.fifo, job.seq, job.id
            LIMIT 1
        ) AS member
        WHERE member.state = 'ready'
            AND NOT EXISTS (SELECT FROM {schema}.permit WHERE permit.gate = 'fifo:' || wanted.key AND permit.token IS NULL)
    );
    IF cardinality(heads) = 0 THEN
        RETURN;
    END IF;
    -- One gate is one `kind`; text that was damaged by hand is not read as JSON.
    fit := ARRAY(
        SELECT job.id
        FROM {schema}.job
        WHERE job.id = ANY (heads)
            AND job.tenant IS NULL
            AND length(job.options) - length(replace(job.options, '"kind":', '')) = length('"kind":')
    );
    most := least(most, cardinality(fit));
    <<queues>>
    FOREACH served_queue IN ARRAY served LOOP
        EXIT WHEN cardinality(chosen) >= most;
        CONTINUE WHEN EXISTS (
            SELECT FROM {schema}.queue WHERE queue.name = served_queue AND queue.paused_at IS NOT NULL
        );
        -- A claim reads what is set for a queue. Whoever sets it waits for the session's lock.
        EXIT WHEN EXISTS (
            SELECT
            FROM {schema}.queue
            WHERE queue.name = served_queue AND (queue.concurrency IS NOT NULL OR queue.is_strict)
        );
        -- Between tenants turns decide, not sort keys: a claim draws them.
        EXIT WHEN EXISTS (
            SELECT
            FROM {schema}.job
            WHERE job.queue = served_queue AND job.filed = 'ready' AND job.gate IS NOT NULL AND job.tenant IS NOT NULL
        );
        FOR one IN
            SELECT first.id
            FROM (
                (
                    SELECT job.id, job.sort_key
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
                    SELECT job.id, job.sort_key
                    FROM {schema}.job
                    WHERE job.queue = served_queue
                        AND job.filed = 'ready'
                        AND job.gate IS NOT NULL
                        AND job.tenant IS NULL
                        AND (known IS NULL OR job.task = ANY (known))
                    ORDER BY job.queue, job.sort_key, job.id
                    LIMIT most
                )
            ) AS first
            ORDER BY first.sort_key, first.id
        LOOP
            EXIT queues WHEN cardinality(chosen) >= most OR one <> ALL (fit);
            chosen := chosen || one;
        END LOOP;
    END LOOP;
    IF cardinality(chosen) > 0 THEN
        taken := ARRAY(
            SELECT job.id
            FROM {schema}.job
            WHERE job.id = ANY (chosen) AND job.state = 'ready' AND job.gate IS NOT NULL
            ORDER BY job.id
            FOR UPDATE SKIP LOCKED
        );
        INSERT INTO {schema}.permit (gate, job, token, weight)
        SELECT 'fifo:' || job.fifo, job.id, NULL, 0 FROM {schema}.job WHERE job.id = ANY (taken)
        ON CONFLICT (gate, job) DO UPDATE SET token = excluded.token, weight = excluded.weight;
        RETURN QUERY
        UPDATE {schema}.job
        SET state = 'running',
            filed = 'running',
            attempt = least(job.attempt, 2147483646) + 1, -- as claim does
            fence = greatest(job.fence + 1, {schema}.micros(at)),
            token = by_token,
            session = by_session,
            claimed_at = at,
            progress = NULL,
            log = NULL
        WHERE job.id = ANY (taken)
        RETURNING job.*;
    END IF;
    SELECT array_agg(DISTINCT job.queue) INTO woken
    FROM {schema}.job
    WHERE job.id = ANY (heads) AND job.id <> ALL (taken);
    IF woken IS NOT NULL THEN
        PERFORM {schema}.ring(woken, false);
    END IF;
END
$$;

-- running -> completed for members of FIFO keys, and ready -> running for the next ones, in one statement: what
-- finish.sql does, then next_members. Each statement in here has its own snapshot, and the later ones must see what
-- others did until the locks were there. So a transaction that is not READ COMMITTED gets no row, and nothing is done.
-- The first row has the ids that took; the others have the jobs that were claimed.
CREATE FUNCTION {schema}.finish_members(
    ids uuid[], tokens uuid[], results jsonb, result text,
    by_session uuid, by_token uuid, served text[], known text[], most bigint, given timestamptz
) RETURNS TABLE (took text[], claimed {schema}.job)
    LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    at timestamptz;
    keys text[];
    ended text[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    PERFORM FROM {schema}.session WHERE id = by_session AND ended_at IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        most := 0;
    END IF;
    PERFORM set_config('lock_timeout', '4s', true), set_config('winch.claims', 'on', true);
    PERFORM {schema}.lock_gates(ARRAY(
        SELECT gate::text FROM {schema}.permit WHERE job = ANY (ids)
        UNION
        SELECT 'fifo:' || fifo FROM {schema}.job WHERE id = ANY (ids) AND fifo IS NOT NULL
    ));
    at := coalesce(given, clock_timestamp());
    -- Whose claim is live under the gate's lock: it can end only here. A key whose member does not end keeps its turn.
    keys := ARRAY(
        SELECT DISTINCT job.fifo
        FROM unnest(ids, tokens) AS outcome (job, by_token)
        JOIN {schema}.job AS job ON job.id = outcome.job AND job.token = outcome.by_token
        WHERE job.fifo IS NOT NULL
    );
    WITH gone AS (
        DELETE FROM {schema}.job
        WHERE id = ANY (ids)
            AND (id, token) IN (SELECT outcome.job, outcome.by_token FROM unnest(ids, tokens) AS outcome (job, by_token))
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
            {schema}.drop_on('completed', keep_seconds, at), is_suspect, is_given_id, 'completed', queue, task, args,
            session, token, claimed_at, expires_at, cancel_requested_at, keep_seconds, max_attempts, tenant, fifo,
            seq, unique_key, tags, headers, options, progress, checkpoint, log, history,
            CASE WHEN results IS NULL THEN finish_members.result ELSE results ->> id::text END, NULL
        FROM gone
    )
    SELECT coalesce(array_agg(id::text), '{}') INTO ended FROM gone;
    RETURN QUERY SELECT ended, NULL::{schema}.job;
    RETURN QUERY SELECT NULL::text[], next FROM {schema}.next_members(keys, by_session, by_token, served, known, most, at) AS next;
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
COMMENT ON INDEX {schema}.signal_taken IS 'serves take_signal, for who has taken one before';
CREATE INDEX signal_sent ON {schema}.signal (sent_at);
COMMENT ON INDEX {schema}.signal_sent IS 'serves prune';

-- Who waits for what. A row whose job is not blocked says nothing, and goes when somebody meets it.
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

-- Keys that somebody may wait for and that may have come: written with the change, taken up by unblock once that
-- is committed. Insert and delete only, so nobody waits for anybody here.
CREATE TABLE {schema}.recheck (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text COLLATE "C" NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

-- The end of a job that is waited for together with others wakes who looks at that only where it may be the last: while
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
    IF current_setting('winch.told', true) = OLD.headers THEN
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
            PERFORM set_config('winch.told', OLD.headers, true);
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

-- Final jobs that somebody still needs are kept past their time: their parent is live, somebody waits for their key, or a
-- live member of their flow was stored with members before it. All ids of one flow begin alike.
CREATE FUNCTION {schema}.still_awaited(headers text) RETURNS boolean
    LANGUAGE plpgsql STABLE
AS $$
DECLARE
    said text := substring(headers FROM '"winch-awaited":"([^"]*)"');
    flow text := substring(headers FROM '"winch-flow":"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22})"');
BEGIN
    IF starts_with(said, 'all:') THEN
        IF EXISTS (SELECT FROM {schema}.waiting WHERE key = left(said, 34)) THEN
            RETURN true;
        END IF;
    ELSIF said ~ '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' THEN
        IF EXISTS (SELECT FROM {schema}.job WHERE id = said::uuid) THEN
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
        NULL; -- somebody reads the net for long; there is time until tomorrow
    END;
    -- Jobs that somebody still needs leave the partitions that are about to go. None comes into these any more.
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
                gone := 0; -- somebody reads the archive for long (a dump); the next call tries again
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
