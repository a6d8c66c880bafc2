-- counts: how many jobs are in each state, counted up to a cap each over the indexes of the states.
SELECT 'ready', count(*)
FROM (
    SELECT 1 FROM winch_job INDEXED BY winch_job_ready WHERE state = 'ready' AND gate IS NULL
    UNION ALL
    SELECT 1 FROM winch_job INDEXED BY winch_job_gated WHERE state = 'ready' AND gate IS NOT NULL
    LIMIT :cap
)
UNION ALL
SELECT 'running', count(*)
FROM (SELECT 1 FROM winch_job INDEXED BY winch_job_running WHERE state = 'running' LIMIT :cap)
UNION ALL
SELECT 'blocked', count(*)
FROM (SELECT 1 FROM winch_job INDEXED BY winch_job_blocked WHERE state = 'blocked' LIMIT :cap)
UNION ALL
SELECT 'scheduled', count(*)
FROM (
    SELECT 1
    FROM winch_job INDEXED BY winch_job_due
    WHERE (state = 'scheduled' OR state = 'retrying') AND state = 'scheduled'
    LIMIT :cap
)
UNION ALL
SELECT 'retrying', count(*)
FROM (
    SELECT 1
    FROM winch_job INDEXED BY winch_job_due
    WHERE (state = 'scheduled' OR state = 'retrying') AND state = 'retrying'
    LIMIT :cap
)
UNION ALL
SELECT 'completed', count(*)
FROM (SELECT 1 FROM winch_archive WHERE state = 'completed' LIMIT :cap)
UNION ALL
SELECT 'cancelled', count(*)
FROM (
    SELECT 1
    FROM winch_archive INDEXED BY winch_archive_unusual
    WHERE (state = 'cancelled' OR state = 'dead') AND state = 'cancelled'
    LIMIT :cap
)
UNION ALL
SELECT 'dead', count(*)
FROM (
    SELECT 1
    FROM winch_archive INDEXED BY winch_archive_unusual
    WHERE (state = 'cancelled' OR state = 'dead') AND state = 'dead'
    LIMIT :cap
);
