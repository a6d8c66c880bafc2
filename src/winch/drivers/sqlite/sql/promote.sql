-- promote: scheduled | retrying -> ready, earliest first, with the sort key of the run time.
UPDATE winch_job
SET state = 'ready',
    sort_key = run_at - priority * :head_start,
    changed_at = :now
WHERE id IN (
    SELECT id
    FROM winch_job
    WHERE (state = 'scheduled' OR state = 'retrying')
        AND run_at <= :now
    ORDER BY run_at, id
    LIMIT :limit
)
RETURNING queue;

-- promote.next: when the next one is due.
SELECT run_at
FROM winch_job
WHERE state = 'scheduled' OR state = 'retrying'
ORDER BY run_at, id
LIMIT 1;
