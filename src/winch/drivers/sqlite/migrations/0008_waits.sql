-- Jobs that wait for signals and for other jobs.

CREATE TABLE winch_signal (
    name TEXT NOT NULL,
    id TEXT NOT NULL,
    payload TEXT NOT NULL,
    sent_at INTEGER NOT NULL,
    taken_by TEXT,
    wanted_by TEXT,
    PRIMARY KEY (name, id),
    CONSTRAINT signal_taken_for_something CHECK ((taken_by IS NULL) = (wanted_by IS NULL))
) STRICT;

-- Serves take_signal and unblock.
CREATE INDEX winch_signal_untaken ON winch_signal (name, sent_at, id) WHERE taken_by IS NULL;
-- Serves take_signal, for who has taken one before.
CREATE INDEX winch_signal_taken ON winch_signal (taken_by, wanted_by) WHERE taken_by IS NOT NULL;
-- Serves prune.
CREATE INDEX winch_signal_sent ON winch_signal (sent_at);

-- Who waits for what. A row whose job is not blocked says nothing, and goes when somebody meets it.
CREATE TABLE winch_waiting (
    job TEXT NOT NULL,
    key TEXT NOT NULL,
    is_enough INTEGER NOT NULL,
    until INTEGER,
    PRIMARY KEY (job, key)
) STRICT;

-- Serves unblock.
CREATE INDEX winch_waiting_key ON winch_waiting (key);
-- Serves unblock.
CREATE INDEX winch_waiting_until ON winch_waiting (until) WHERE until IS NOT NULL;

-- Keys that somebody may wait for and that may have come: written with the change, taken up by unblock.
CREATE TABLE winch_recheck (
    seq INTEGER PRIMARY KEY,
    key TEXT NOT NULL
) STRICT;

-- A job that others may wait for is final, or gone, whichever verb did it.
CREATE TRIGGER winch_job_awaited AFTER DELETE ON winch_job
WHEN OLD.headers <> '{}' AND instr(OLD.headers, '"winch-awaited"') > 0
BEGIN
    INSERT INTO winch_recheck (key) VALUES ('job:' || OLD.id);
END;
