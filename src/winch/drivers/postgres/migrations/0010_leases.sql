-- Claims by the hundred write less: the job's row is replaced in its own page, and no index hears of it.
--
-- What the indexes have a job as: its state, or still `ready` while a claim by the hundred runs it. So a
-- column that an index needs does not change with such a claim, and the row stays where it is. The rest of
-- its page is left free for that. Which jobs a claim has is told by one row for the whole claim.
-- `migrate` rewrites no row that is ready; live jobs of other states are few.

ALTER TABLE {schema}.job ADD COLUMN filed text NOT NULL DEFAULT 'ready';
UPDATE {schema}.job SET filed = state WHERE state <> 'ready';
-- What a job may be, in one constraint: a statement reads each of them anew before its first row.
ALTER TABLE {schema}.job
    DROP CONSTRAINT job_state_is_live,
    DROP CONSTRAINT job_token_iff_running,
    DROP CONSTRAINT job_running_has_session,
    DROP CONSTRAINT job_attempt_from_0,
    ADD CONSTRAINT job_is_possible CHECK (
        attempt >= 0
        AND CASE state
            WHEN 'running' THEN
                token IS NOT NULL AND session IS NOT NULL AND claimed_at IS NOT NULL
                AND (filed = 'running' OR (filed = 'ready' AND gate IS NULL))
            ELSE
                token IS NULL AND filed = state
                AND state IN ('ready', 'scheduled', 'retrying', 'blocked')
        END
    );
ALTER TABLE {schema}.job SET (fillfactor = 45);

DROP INDEX {schema}.job_ready;
CREATE INDEX job_ready ON {schema}.job (queue, sort_key, id) WHERE filed = 'ready' AND gate IS NULL;
COMMENT ON INDEX {schema}.job_ready IS 'serves claim and explain; has what claims by the hundred run, too';
DROP INDEX {schema}.job_gated;
CREATE INDEX job_gated ON {schema}.job (queue, sort_key, id)
    WHERE filed = 'ready' AND gate IS NOT NULL AND tenant IS NULL;
COMMENT ON INDEX {schema}.job_gated IS 'serves claim and explain of jobs with gates';
DROP INDEX {schema}.job_tenant;
CREATE INDEX job_tenant ON {schema}.job (queue, tenant, sort_key, id)
    WHERE filed = 'ready' AND gate IS NOT NULL AND tenant IS NOT NULL;
COMMENT ON INDEX {schema}.job_tenant IS 'serves claim and explain of jobs with tenants';
DROP INDEX {schema}.job_blocked;
CREATE INDEX job_blocked ON {schema}.job (gate, sort_key, id) WHERE filed = 'blocked';
COMMENT ON INDEX {schema}.job_blocked IS 'serves admit, explain and counts';
DROP INDEX {schema}.job_due;
CREATE INDEX job_due ON {schema}.job (run_at, id) WHERE filed IN ('scheduled', 'retrying');
COMMENT ON INDEX {schema}.job_due IS 'serves promote';
DROP INDEX {schema}.job_running;
-- Not by session: a claim writes that, and a column of any index would send it to all of them.
CREATE INDEX job_running ON {schema}.job (id) WHERE filed = 'running';
COMMENT ON INDEX {schema}.job_running IS 'serves the view claimed';
DROP INDEX {schema}.job_cancel;
CREATE INDEX job_cancel ON {schema}.job (cancel_requested_at) WHERE cancel_requested_at IS NOT NULL;
COMMENT ON INDEX {schema}.job_cancel IS 'serves cancels';

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

-- The live claims, whichever way they were made. A job that runs is in it exactly once.
CREATE VIEW {schema}.claimed AS
SELECT job.id, job.token, job.session
FROM {schema}.job
WHERE job.filed = 'running'
UNION ALL
SELECT job.id, job.token, job.session
FROM {schema}.lease
CROSS JOIN LATERAL unnest(lease.ids) AS member (id)
CROSS JOIN LATERAL (
    SELECT job.id, job.token, job.session
    FROM {schema}.job
    WHERE job.id = member.id
        AND job.token = lease.token
        AND job.filed = 'ready'
    OFFSET 0 -- by its id, whatever the planner believes
) AS job;

CREATE OR REPLACE FUNCTION {schema}.open_gate(opened text, most integer) RETURNS integer
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
    PERFORM {schema}.ring(woken, false);
    RETURN cardinality(chosen);
END
$$;
