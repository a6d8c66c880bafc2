-- has_gated: whether a ready job of these queues has gates.
SELECT EXISTS (
    SELECT 1
    FROM winch_job
    WHERE state = 'ready'
        AND gate IS NOT NULL
        AND queue IN (SELECT value FROM json_each(:queues))
);
