-- resume: claims continue, and workers that wait for the queue are woken.
WITH resumed AS (
    UPDATE {schema}.queue
    SET paused_at = NULL,
        pause_reason = NULL
    WHERE name = :queue
    RETURNING name
)
SELECT {schema}.ring(array_agg(name), false)
FROM resumed;
