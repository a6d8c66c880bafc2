-- rebind: scheduled | blocked | ready | retrying stay what they are, and carry other options and another priority.
-- Locks: the job rows by id with SKIP LOCKED; who is claimed or ended right now is let go. Only where options and
-- priority are what the caller has read.
WITH wanted AS MATERIALIZED (
    SELECT id, options, priority, to_options, to_priority
    FROM json_to_recordset(:changes::json) AS given (
        id uuid, options text, priority integer, to_options text, to_priority integer
    )
),
locked AS MATERIALIZED (
    SELECT job.id
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT found.id
        FROM {schema}.job AS found
        WHERE found.id = wanted.id
            AND found.state IN ('scheduled', 'blocked', 'ready', 'retrying')
            AND found.options IS NOT DISTINCT FROM wanted.options
            AND found.priority = wanted.priority
        FOR UPDATE SKIP LOCKED
    ) AS job
)
UPDATE {schema}.job
SET options = wanted.to_options,
    priority = wanted.to_priority,
    sort_key = job.sort_key - (wanted.to_priority - job.priority)::bigint * 60000000,
    gate = CASE WHEN job.gate IS NULL AND substr(wanted.to_options, 2, 8) = '"gates":' THEN '' ELSE job.gate END
FROM wanted
JOIN locked ON locked.id = wanted.id
WHERE job.id = wanted.id
RETURNING job.id::text;
