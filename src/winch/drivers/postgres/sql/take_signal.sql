-- take_signal: the fence. Locks: the job's row, where this claim is live, so that it stays so.
SELECT id::text
FROM {schema}.job
WHERE id = :id::uuid
    AND token = :token::uuid
    AND state = 'running'
FOR NO KEY UPDATE;

-- take_signal.again: what the job has taken for this before.
SELECT payload
FROM {schema}.signal
WHERE taken_by = :id::uuid
    AND wanted_by = :wanted_by::text
    AND name = :name::text;

-- take_signal.first: the oldest that is not taken. Locks: that signal, SKIP LOCKED: the one that has it takes it.
UPDATE {schema}.signal
SET taken_by = :id::uuid,
    wanted_by = :wanted_by::text
WHERE (name, id) = (
    SELECT name, id
    FROM {schema}.signal
    WHERE name = :name::text
        AND taken_by IS NULL
    ORDER BY sent_at, id
    LIMIT 1
    FOR UPDATE SKIP LOCKED
)
RETURNING payload;

-- take_signal.live: the same fence for a job that adds to what others wait for. Locks: the job's row FOR SHARE, so that it
-- is unfinished until this commits; others may add at the same time.
SELECT id::text
FROM {schema}.job
WHERE id = :id::uuid
    AND token = :token::uuid
    AND state = 'running'
FOR SHARE;
