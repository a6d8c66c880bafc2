-- enqueue: -> ready | scheduled. One statement for all jobs of a call that share an envelope:
-- :jobs is a JSON object of id -> args. Binding twenty values for each job costs twice as much.
INSERT INTO winch_job (
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, sort_key, changed_at
)
SELECT
    new.key, :task, :version, new.atom, :queue, :priority, :now, :run_at, :state, :tenant, :fifo,
    :unique_key, :tags, :headers, :options, :expires_at, :max_attempts, :keep, :sort_key, :now
FROM json_each(:jobs) AS new;

-- enqueue.one: the same for a single job, which most calls bring.
INSERT INTO winch_job (
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, sort_key, changed_at
)
VALUES (
    :id, :task, :version, :args, :queue, :priority, :now, :run_at, :state, :tenant, :fifo, :unique_key,
    :tags, :headers, :options, :expires_at, :max_attempts, :keep, :sort_key, :now
);

-- enqueue.known: which of these ids are taken, for given ids and for a repeat.
-- Differs from PostgreSQL: there is one writer at a time, so a look at both tables is one look.
SELECT id
FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids))
UNION ALL
SELECT id
FROM winch_archive
WHERE id IN (SELECT value FROM json_each(:ids));
