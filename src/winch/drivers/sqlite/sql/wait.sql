-- wait: is there anything for a bell of these queues to ring for? Asked when the file has changed.
SELECT EXISTS (
    SELECT 1
    FROM json_each(:queues) AS wanted
    WHERE (
            EXISTS (SELECT 1 FROM winch_job WHERE state = 'ready' AND gate IS NULL AND queue = wanted.value)
            OR EXISTS (SELECT 1 FROM winch_job WHERE state = 'ready' AND gate IS NOT NULL AND queue = wanted.value)
        )
        AND NOT EXISTS (
            SELECT 1
            FROM winch_queue
            WHERE name = wanted.value
                AND (
                    paused_at IS NOT NULL
                    OR concurrency <= (SELECT count(*) FROM winch_permit WHERE gate = 'queue:' || name)
                )
        )
) OR (:due AND EXISTS (
    SELECT 1
    FROM winch_job
    WHERE (state = 'scheduled' OR state = 'retrying')
        AND run_at < :soon
)) OR (:due AND EXISTS (SELECT 1 FROM winch_gate WHERE open_at < :soon));
