-- The first schema.
--
-- {schema} is the schema's quoted name; nothing else in here is filled in. State is text with a CHECK, so
-- that both SQL stores read alike. Lists that are empty and texts that are absent are NULL: most jobs
-- have none of them, and a NULL costs no byte in the row.

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
    CONSTRAINT job_state_is_live
        CHECK (state IN ('ready', 'running', 'scheduled', 'retrying', 'blocked')),
    CONSTRAINT job_token_iff_running CHECK ((state = 'running') = (token IS NOT NULL)),
    CONSTRAINT job_running_has_session
        CHECK (state <> 'running' OR (session IS NOT NULL AND claimed_at IS NOT NULL)),
    CONSTRAINT job_attempt_from_0 CHECK (attempt >= 0)
) WITH (
    -- A job's row is replaced by its claim and removed by its finish: the table is mostly dead rows, and
    -- claims walk over them until vacuum has been. It comes often and does not rest; it does not give
    -- pages at the end back, which would need a lock that claims wait for.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);

CREATE INDEX job_ready ON {schema}.job (queue, sort_key, id) WHERE state = 'ready';
COMMENT ON INDEX {schema}.job_ready IS 'serves claim and explain';
CREATE INDEX job_due ON {schema}.job (run_at, id) WHERE state IN ('scheduled', 'retrying');
COMMENT ON INDEX {schema}.job_due IS 'serves promote';
CREATE INDEX job_running ON {schema}.job (session) WHERE state = 'running';
COMMENT ON INDEX {schema}.job_running IS 'serves rescue, end_session, give_up and sessions';
CREATE INDEX job_cancel ON {schema}.job (session) WHERE cancel_requested_at IS NOT NULL;
COMMENT ON INDEX {schema}.job_cancel IS 'serves cancels';

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
    CONSTRAINT archive_state_is_final CHECK (state IN ('completed', 'cancelled', 'dead')),
    CONSTRAINT archive_result_is_of_completed CHECK (result IS NULL OR state = 'completed')
) PARTITION BY RANGE (drop_on);

CREATE INDEX archive_id ON {schema}.archive (id);
COMMENT ON INDEX {schema}.archive_id IS 'serves get, list_jobs and the look-ups of finish';
CREATE INDEX archive_unusual ON {schema}.archive (state, id) WHERE state <> 'completed';
COMMENT ON INDEX {schema}.archive_unusual IS 'serves list_jobs and counts: few among very many';
CREATE INDEX archive_given_id ON {schema}.archive (id) WHERE is_given_id;
COMMENT ON INDEX {schema}.archive_given_id IS 'serves prune, which frees the ids that callers gave';

-- The safety net: whatever finds no partition of its own, because it is kept for more than two years or
-- because nobody has made partitions ahead for a while.
CREATE TABLE {schema}.archive_default PARTITION OF {schema}.archive DEFAULT;
CREATE INDEX archive_default_drop_on ON {schema}.archive_default (drop_on);
COMMENT ON INDEX {schema}.archive_default_drop_on IS 'serves prune';

-- Ids that callers gave: they stay in place while a finish moves the job from one table to the other.
CREATE TABLE {schema}.given_id (
    id uuid PRIMARY KEY
);

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
    waiting_until timestamptz
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
CREATE FUNCTION {schema}.ring(queues text[], is_due boolean) RETURNS boolean
    LANGUAGE plpgsql
AS $$
DECLARE
    payload text;
BEGIN
    SELECT json_agg(queue.name)::text INTO payload
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
    RETURN true;
END
$$;

-- The changes of jobs, written by triggers that `migrate` adds for events="full"; else empty.
CREATE TABLE {schema}.job_event (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job uuid NOT NULL,
    v integer NOT NULL,
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
