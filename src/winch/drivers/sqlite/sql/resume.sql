-- resume: claims go on.
UPDATE queue
SET paused_at = NULL,
    pause_reason = NULL
WHERE name = :queue;
