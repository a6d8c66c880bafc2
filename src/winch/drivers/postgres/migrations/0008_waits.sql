-- Jobs that wait for signals and for other jobs.

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

-- A job that others may wait for is final, or gone, whichever verb did it. A trigger, so that none can forget it;
-- the condition is all that other jobs pay.
CREATE FUNCTION {schema}.tell_waiting() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO {schema}.recheck (key) VALUES ('job:' || OLD.id);
    PERFORM {schema}.ring(NULL, true);
    RETURN NULL;
END
$$;

CREATE TRIGGER job_awaited AFTER DELETE ON {schema}.job
    FOR EACH ROW WHEN (OLD.headers IS NOT NULL AND strpos(OLD.headers, '"winch-awaited"') > 0)
    EXECUTE FUNCTION {schema}.tell_waiting();
