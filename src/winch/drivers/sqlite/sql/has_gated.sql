-- has_gated: whether a ready job of these queues has gates, or one of them has a rule.
SELECT EXISTS (
    SELECT 1
    FROM winch_job
    WHERE state = 'ready'
        AND gate IS NOT NULL
        AND queue IN (SELECT value FROM json_each(:queues))
) OR EXISTS (
    SELECT 1
    FROM winch_queue
    WHERE name IN (SELECT value FROM json_each(:queues))
        AND (concurrency IS NOT NULL OR is_strict)
);
