-- enqueue: -> ready | scheduled. One statement for all jobs of a call that share an envelope: :jobs is a JSON
-- object of id -> args. Binding twenty values for each job costs twice as much. Members of a FIFO key have a number
-- each (:seq), so they are stored one by one. Its options show whether a job has gates.
INSERT INTO winch_job (
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, seq, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, sort_key, changed_at, gate
)
SELECT
    new.key, :task, :version, new.atom, :queue, :priority, :now, :run_at, :state, :tenant, :fifo, :seq,
    :unique_key, :tags, :headers, :options, :expires_at, :max_attempts, :keep, :sort_key, :now,
    CASE WHEN substr(:options, 1, 9) = '{"gates":' THEN '' END
FROM json_each(:jobs) AS new;

-- enqueue.plain: the same for one job that is ready at once and needs nothing more: half of the values. They are
-- bound in their order, which is the quickest way.
INSERT INTO winch_job (
    id, task, version, args, queue, priority, max_attempts, keep, sort_key, created_at, run_at, changed_at,
    state
)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'ready');

-- enqueue.last: the greatest number of live members of these FIFO keys.
SELECT max((
    SELECT coalesce(seq, created_at)
    FROM winch_job
    WHERE fifo = wanted.value
    ORDER BY coalesce(seq, created_at) DESC
    LIMIT 1
))
FROM json_each(:keys) AS wanted;

-- enqueue.known: which of these ids are taken, for given ids and for a repeat.
-- Differs from PostgreSQL: there is one writer at a time, so a look at both tables is one look.
SELECT id
FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids))
UNION ALL
SELECT id
FROM winch_archive
WHERE id IN (SELECT value FROM json_each(:ids));

-- enqueue.holders: the live jobs that have these unique keys.
SELECT unique_key, id, state
FROM winch_job INDEXED BY winch_job_unique
WHERE unique_key IN (SELECT value FROM json_each(:keys))
    AND unique_key IS NOT NULL;

-- enqueue.replace: scheduled | ready | retrying -> ready | scheduled, with what an enqueue brings instead.
UPDATE winch_job
SET state = :state,
    args = :args,
    version = :version,
    priority = :priority,
    run_at = :run_at,
    sort_key = :sort_key,
    attempt = :attempt,
    reason = :reason,
    history = :history,
    changed_at = :now
WHERE id = :id;

-- enqueue.after: ready | scheduled -> blocked, in the transaction that stores them.
UPDATE winch_job
SET state = 'blocked',
    reason = :reason,
    changed_at = :now
WHERE id IN (SELECT value FROM json_each(:ids))
    AND (state = 'ready' OR state = 'scheduled');

-- enqueue.waits: what jobs wait for, also more of it; :waits is a JSON list of [job, key, is_enough].
INSERT OR IGNORE INTO winch_waiting (job, key, is_enough)
SELECT value ->> 0, value ->> 1, value ->> 2
FROM json_each(:waits)
WHERE EXISTS (SELECT 1 FROM winch_job WHERE id = value ->> 0 AND state = 'blocked');

-- enqueue.kept: the final jobs that have these unique keys for a while yet.
SELECT winch_unique_kept.key, winch_unique_kept.job
FROM winch_unique_kept
JOIN winch_archive ON winch_archive.id = winch_unique_kept.job
WHERE winch_unique_kept.key IN (SELECT value FROM json_each(:keys))
    AND winch_unique_kept.until > :now;

-- enqueue.keep: a job has its key at least until then.
INSERT INTO winch_unique_kept (key, job, until)
VALUES (:key, :job, :until)
ON CONFLICT (key) DO UPDATE
SET job = excluded.job,
    until = excluded.until;

-- enqueue.take_over: running jobs leave their unique keys to others.
UPDATE winch_job
SET unique_key = NULL
WHERE id IN (SELECT value FROM json_each(:ids));
