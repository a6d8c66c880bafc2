-- Gates: limits, rates, FIFO keys, tenants and scopes.

-- NULL: a plain job. Else it has gates: '' while it does not wait, and the key of the gate while it is blocked.
ALTER TABLE winch_job ADD COLUMN gate TEXT;

-- Serves claim and explain. Jobs with gates have an index of their own: plain claims never walk over them.
DROP INDEX winch_job_ready;
CREATE INDEX winch_job_ready ON winch_job (queue, sort_key, id) WHERE state = 'ready' AND gate IS NULL;
-- Serves claim of jobs with gates.
CREATE INDEX winch_job_gated ON winch_job (queue, tenant, sort_key, id)
WHERE state = 'ready' AND gate IS NOT NULL;
-- Serves admit, explain and counts.
DROP INDEX winch_job_blocked;
CREATE INDEX winch_job_blocked ON winch_job (gate, sort_key, id) WHERE state = 'blocked';
-- Serves claim and admit: who is first of a FIFO key.
CREATE INDEX winch_job_fifo ON winch_job (fifo, created_at, id) WHERE fifo IS NOT NULL;

-- What a gate remembers: of a rate what was taken, of a scope until when it is held, of a queue with tenants
-- whose turn it is. open_at: when to look again for those who wait.
CREATE TABLE winch_gate (
    key TEXT PRIMARY KEY NOT NULL,
    state TEXT,
    open_at INTEGER
) STRICT;
-- Serves admit.
CREATE INDEX winch_gate_due ON winch_gate (open_at) WHERE open_at IS NOT NULL;

-- Who may run: with a token until that claim ends, without one (the turn of a FIFO key) until the job is final.
CREATE TABLE winch_permit (
    gate TEXT NOT NULL,
    job TEXT NOT NULL,
    token TEXT,
    weight INTEGER NOT NULL,
    PRIMARY KEY (gate, job)
) STRICT;
-- Serves whatever ends a claim.
CREATE INDEX winch_permit_of_job ON winch_permit (job);

-- Limits, rates and weights as they are set for the whole fleet, by name.
CREATE TABLE winch_limit (
    name TEXT PRIMARY KEY NOT NULL,
    spec TEXT NOT NULL,
    is_live INTEGER NOT NULL,
    set_by TEXT NOT NULL,
    set_at INTEGER NOT NULL
) STRICT;

-- Whoever stores a job, its options tell that it has gates.
CREATE TRIGGER winch_job_has_gates AFTER INSERT ON winch_job WHEN substr(NEW.options, 1, 9) = '{"gates":'
BEGIN
    UPDATE winch_job SET gate = '' WHERE rowid = NEW.rowid;
END;
