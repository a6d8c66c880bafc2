-- One number per queue to scale workers by: jobs that could run now, and those that do. A paused queue's
-- ready jobs could not. Names and columns stay as they are: scalers outside ask for them.

CREATE VIEW {schema}.backlog AS
SELECT
    job.queue,
    count(*) FILTER (WHERE job.state = 'running' OR queue.paused_at IS NULL) AS value
FROM {schema}.job
LEFT JOIN {schema}.queue ON queue.name = job.queue
WHERE job.state IN ('ready', 'running')
GROUP BY job.queue;

COMMENT ON VIEW {schema}.backlog IS 'jobs that could run now, by queue: what to scale workers by';
