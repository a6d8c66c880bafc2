-- set_queue: what claims of this queue read from now on.
INSERT INTO winch_queue (name, concurrency, is_strict)
VALUES (:queue, :concurrency, :is_strict)
ON CONFLICT (name) DO UPDATE
SET concurrency = excluded.concurrency,
    is_strict = excluded.is_strict;

-- set_queue.count: jobs of the queue that run count.
INSERT INTO winch_permit (gate, job, token, weight)
SELECT 'queue:' || :queue, id, token, 1
FROM winch_job
WHERE state = 'running'
    AND queue = :queue
ON CONFLICT (gate, job) DO NOTHING;

-- set_queue.mark: and end as jobs with gates do.
UPDATE winch_job
SET gate = ''
WHERE state = 'running'
    AND queue = :queue
    AND gate IS NULL;
