-- finish_and_claim: ready -> running, for the next members of the FIFO keys of jobs that are final now: which ones,
-- each with the gate at which it still waits, and with its options where this session may take it. claim.take takes
-- them. And the options of those among the ended jobs that are under a limit, each once. In one row, as JSON: see claim.
WITH ended AS MATERIALIZED (
    SELECT fifo, CASE WHEN instr(options, '"kind":"limit"') > 0 THEN options END AS limited
    FROM winch_archive
    WHERE id IN (SELECT value FROM json_each(:ids))
),
alive AS MATERIALIZED (
    SELECT EXISTS (SELECT 1 FROM winch_session WHERE id = :session AND ended_at IS NULL) AS is_alive
)
SELECT json_array(
    json((
        SELECT json_group_array(json_array(
            member.id,
            CASE WHEN member.state = 'blocked' THEN member.gate END,
            CASE WHEN member.tenant IS NULL AND alive.is_alive THEN member.options END
        ))
        FROM (SELECT DISTINCT fifo FROM ended WHERE fifo IS NOT NULL) AS left_by
        CROSS JOIN alive
        JOIN winch_job AS member ON member.id = (
            SELECT id
            FROM winch_job
            WHERE fifo = left_by.fifo
            ORDER BY coalesce(seq, created_at), id
            LIMIT 1
        )
        WHERE (member.state = 'ready' OR (member.state = 'blocked' AND member.gate = 'fifo:' || left_by.fifo))
            AND NOT EXISTS (SELECT 1 FROM winch_permit WHERE gate = 'fifo:' || left_by.fifo AND token IS NULL)
    )),
    json((SELECT json_group_array(DISTINCT limited) FILTER (WHERE limited IS NOT NULL) FROM ended))
);

-- finish_and_claim.first: what a claim from this queue would take first, in its order; nothing from a paused queue. One
-- without an id comes first where a claim has more to decide: jobs of tenants are ready, or the queue has a rule.
-- In one row, as JSON: see claim.
SELECT json_group_array(json_array(sort_key, id, options))
FROM (
    SELECT *
    FROM (
        SELECT id, sort_key, options
        FROM winch_job
        WHERE state = 'ready'
            AND gate IS NULL
            AND queue = :queue
            AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
        ORDER BY sort_key, id
        LIMIT 1
    )
    UNION ALL
    SELECT *
    FROM (
        SELECT id, sort_key, options
        FROM winch_job
        WHERE state = 'ready'
            AND gate IS NOT NULL
            AND queue = :queue
            AND tenant IS NULL
            AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
        ORDER BY sort_key, id
        LIMIT :limit
    )
    UNION ALL
    SELECT '', -9223372036854775808, NULL
    FROM winch_queue
    WHERE name = :queue
        AND (concurrency IS NOT NULL OR is_strict)
    UNION ALL
    SELECT *
    FROM (
        SELECT '', -9223372036854775808, NULL
        FROM winch_job
        WHERE state = 'ready'
            AND gate IS NOT NULL
            AND queue = :queue
            AND tenant > ''
        LIMIT 1
    )
)
WHERE NOT EXISTS (SELECT 1 FROM winch_queue WHERE name = :queue AND paused_at IS NOT NULL)
    AND EXISTS (SELECT 1 FROM winch_session WHERE id = :session AND ended_at IS NULL);
