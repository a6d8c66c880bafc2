-- resume: claims go on.
UPDATE winch_queue
SET paused_at = NULL,
    pause_reason = NULL
WHERE name = :queue;
