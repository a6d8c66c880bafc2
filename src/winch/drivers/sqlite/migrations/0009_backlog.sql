-- One number per queue to scale workers by: jobs that could run now, and those that do. A paused queue's
-- ready jobs could not.

CREATE VIEW winch_backlog AS
SELECT
    winch_job.queue AS queue,
    sum(winch_job.state = 'running' OR winch_queue.paused_at IS NULL) AS value
FROM winch_job
LEFT JOIN winch_queue ON winch_queue.name = winch_job.queue
WHERE winch_job.state IN ('ready', 'running')
GROUP BY winch_job.queue;
