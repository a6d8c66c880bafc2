-- wait: says that somebody waits for these queues ('' is for due jobs). Writes at most every few seconds for
-- each queue, whoever waits: a row that is good for a while longer is not touched, nor locked.
INSERT INTO {schema}.queue (name, waiting_until)
SELECT waited.name, clock_timestamp() + make_interval(secs => :for_seconds)
FROM unnest(:queues::text[]) AS waited (name)
WHERE NOT EXISTS (
    SELECT
    FROM {schema}.queue
    WHERE queue.name = waited.name
        AND queue.waiting_until > clock_timestamp() + make_interval(secs => :enough_seconds)
)
ORDER BY waited.name
ON CONFLICT (name) DO UPDATE
SET waiting_until = excluded.waiting_until;
