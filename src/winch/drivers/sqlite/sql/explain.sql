-- explain: how many ready jobs of the queue stand before this one, counted up to :most; one look for each of the two
-- indexes.
SELECT (
    SELECT count(*)
    FROM (
        SELECT 1
        FROM winch_job AS other
        JOIN winch_job AS mine ON mine.id = :id AND mine.state = 'ready'
        WHERE other.state = 'ready'
            AND other.gate IS NULL
            AND other.queue = mine.queue
            AND (other.sort_key, other.id) < (mine.sort_key, mine.id)
        LIMIT :most
    )
) + (
    SELECT count(*)
    FROM (
        SELECT 1
        FROM winch_job AS other
        JOIN winch_job AS mine ON mine.id = :id AND mine.state = 'ready'
        WHERE other.state = 'ready'
            AND other.gate IS NOT NULL
            AND other.queue = mine.queue
            AND (other.sort_key, other.id) < (mine.sort_key, mine.id)
        LIMIT :most
    )
);

-- explain.paused: why claims from this queue find nothing.
SELECT pause_reason
FROM winch_queue
WHERE name = :queue
    AND paused_at IS NOT NULL;

-- explain.strict: how many ready jobs stand before this one in a queue of strict order.
SELECT count(*)
FROM (
    SELECT 1
    FROM winch_job AS mine
    JOIN winch_job AS other ON other.state = 'ready'
        AND other.queue = mine.queue
        AND (-other.priority, other.sort_key, other.id) < (-mine.priority, mine.sort_key, mine.id)
    WHERE mine.id = :id
    LIMIT :most
);

-- explain.serving: live sessions that serve this queue, and those among them that know this task.
SELECT
    count(*),
    coalesce(sum(EXISTS (SELECT 1 FROM json_each(winch_session.tasks) AS known WHERE known.value = :task)), 0)
FROM winch_session
WHERE ended_at IS NULL
    AND EXISTS (SELECT 1 FROM json_each(winch_session.queues) AS served WHERE served.value = :queue);
