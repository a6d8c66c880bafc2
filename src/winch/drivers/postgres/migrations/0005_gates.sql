-- Gates: limits, rates, FIFO keys, tenants and scopes.

-- NULL: a plain job. Else it has gates: '' while it does not wait, and the key of the gate while it is blocked.
ALTER TABLE {schema}.job ADD COLUMN gate text COLLATE "C";

-- Jobs with gates have indexes of their own: plain claims never walk over them.
DROP INDEX {schema}.job_ready;
CREATE INDEX job_ready ON {schema}.job (queue, sort_key, id) WHERE state = 'ready' AND gate IS NULL;
COMMENT ON INDEX {schema}.job_ready IS 'serves claim and explain';
CREATE INDEX job_gated ON {schema}.job (queue, sort_key, id)
    WHERE state = 'ready' AND gate IS NOT NULL AND tenant IS NULL;
COMMENT ON INDEX {schema}.job_gated IS 'serves claim and explain of jobs with gates';
CREATE INDEX job_tenant ON {schema}.job (queue, tenant, sort_key, id)
    WHERE state = 'ready' AND gate IS NOT NULL AND tenant IS NOT NULL;
COMMENT ON INDEX {schema}.job_tenant IS 'serves claim and explain of jobs with tenants';
CREATE INDEX job_blocked ON {schema}.job (gate, sort_key, id) WHERE state = 'blocked';
COMMENT ON INDEX {schema}.job_blocked IS 'serves admit, explain and counts';
CREATE INDEX job_fifo ON {schema}.job (fifo, created_at, id) WHERE fifo IS NOT NULL;
COMMENT ON INDEX {schema}.job_fifo IS 'serves claim and admit: who is first of a FIFO key';

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

-- Whoever stores a job, its options tell that it has gates. The condition is all that a plain job pays.
CREATE FUNCTION {schema}.mark_gated() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    NEW.gate := '';
    RETURN NEW;
END
$$;

CREATE TRIGGER job_has_gates BEFORE INSERT ON {schema}.job
    FOR EACH ROW WHEN (left(NEW.options, 9) = '{"gates":')
    EXECUTE FUNCTION {schema}.mark_gated();

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
CREATE FUNCTION {schema}.open_gate(opened text, most integer) RETURNS integer
    LANGUAGE plpgsql
AS $$
DECLARE
    chosen uuid[];
    woken text[];
BEGIN
    IF starts_with(opened, 'fifo:') THEN
        IF EXISTS (SELECT FROM {schema}.permit WHERE gate = opened AND token IS NULL) THEN
            RETURN 0;
        END IF;
        chosen := ARRAY(
            SELECT id FROM {schema}.job WHERE fifo = substr(opened, 6) ORDER BY created_at, id LIMIT 1
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
            WHERE state = 'blocked' AND gate = opened
            ORDER BY gate, sort_key, id
            LIMIT most
            FOR UPDATE SKIP LOCKED
        );
    END IF;
    IF cardinality(chosen) = 0 THEN
        RETURN 0;
    END IF;
    WITH admitted AS (
        UPDATE {schema}.job SET state = 'ready', gate = '' WHERE id = ANY (chosen) RETURNING queue
    )
    SELECT array_agg(DISTINCT queue) INTO woken FROM admitted;
    PERFORM {schema}.ring(woken, false);
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
