-- Dead jobs are grouped by what they died of, and trimmed by number and size.

-- Which other deaths a dead job's own is like. `trace` is what is the same in all errors of one kind; only
-- the store knows the task where it has to make the fingerprint itself. As core/fingerprint.py has it.
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
