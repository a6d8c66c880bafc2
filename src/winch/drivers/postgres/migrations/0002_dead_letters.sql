-- Dead jobs are grouped by what they died of, and trimmed by number and size.

-- Which other deaths a dead job's own is like. `trace` is what is the same in all errors of one kind; only
-- the store knows the task where it has to make the fingerprint itself. As core/values/fingerprint.py has it.
CREATE FUNCTION {schema}.fingerprint(task text, trace text) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN left(encode(sha256(convert_to(task || trace, 'UTF8')), 'hex'), 16);

-- Set for dead jobs only. Those that died before this step have none and are in no group.
ALTER TABLE {schema}.archive ADD COLUMN fingerprint text;

CREATE INDEX archive_alike ON {schema}.archive (fingerprint, id) INCLUDE (task, queue, finished_at)
    WHERE fingerprint IS NOT NULL;
COMMENT ON INDEX {schema}.archive_alike IS 'serves groups and the list of one group';

CREATE INDEX archive_dead ON {schema}.archive (task, finished_at, id) WHERE state = 'dead';
COMMENT ON INDEX {schema}.archive_dead IS 'serves trim';

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
