-- finish_and_claim: ready -> running, for the next members of the FIFO keys of jobs that are final now: which
-- ones. claim.take takes them. In one row, as JSON: see claim.
SELECT json_group_array(json_array(member.id, member.options))
FROM (
    SELECT DISTINCT fifo
    FROM winch_archive
    WHERE id IN (SELECT value FROM json_each(:ids))
        AND fifo IS NOT NULL
) AS ended
JOIN winch_job AS member ON member.id = (
    SELECT id
    FROM winch_job
    WHERE fifo = ended.fifo
    ORDER BY coalesce(seq, created_at), id
    LIMIT 1
)
WHERE member.state = 'ready'
    AND member.tenant IS NULL
    AND NOT EXISTS (SELECT 1 FROM winch_permit WHERE gate = 'fifo:' || ended.fifo AND token IS NULL)
    AND EXISTS (SELECT 1 FROM winch_session WHERE id = :session AND ended_at IS NULL);

-- finish_and_claim.limits: the options of those among these jobs that are under a limit, each once.
SELECT json_group_array(DISTINCT options)
FROM winch_archive
WHERE id IN (SELECT value FROM json_each(:ids))
    AND instr(options, '"kind":"limit"') > 0;

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
