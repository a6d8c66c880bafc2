-- What a job may be is no CHECK any more: every statement that stores jobs read it anew from its text, which for one
-- job was an eighth of the server's work apart from the commit, and what stores jobs writes constants there. It is
-- asked of every job that is changed, as before; of a stored one where it is not filed under its state, by the trigger
-- that was there already; and of all jobs by `winch doctor`.
ALTER TABLE {schema}.job DROP CONSTRAINT job_is_possible;

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

-- Whoever stores a job, its options tell that it has gates. They are looked at here and not in the condition, which is
-- read anew from its text, too, and is all that a plain job pays.
CREATE OR REPLACE FUNCTION {schema}.mark_gated() RETURNS trigger
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

CREATE OR REPLACE TRIGGER job_has_gates BEFORE INSERT ON {schema}.job
    FOR EACH ROW WHEN (NEW.options IS NOT NULL OR NEW.filed <> NEW.state)
    EXECUTE FUNCTION {schema}.mark_gated();

-- A table of which nothing is known is taken for ten pages, and gone through by its index; most have one page.
ANALYZE {schema}.queue;
