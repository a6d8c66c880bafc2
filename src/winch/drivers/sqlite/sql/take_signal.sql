-- take_signal: the fence: the job, where this claim is live.
SELECT id
FROM winch_job
WHERE id = :id
    AND token = :token
    AND state = 'running';

-- take_signal.again: what the job has taken for this before.
SELECT payload
FROM winch_signal
WHERE taken_by = :id
    AND wanted_by = :wanted_by
    AND name = :name;

-- take_signal.first: the oldest that is not taken.
UPDATE winch_signal
SET taken_by = :id,
    wanted_by = :wanted_by
WHERE (name, id) = (
    SELECT name, id
    FROM winch_signal
    WHERE name = :name
        AND taken_by IS NULL
    ORDER BY sent_at, id
    LIMIT 1
)
RETURNING payload;
