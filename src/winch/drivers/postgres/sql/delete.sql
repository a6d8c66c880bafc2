-- delete: scheduled | blocked | ready | retrying | completed | cancelled | dead -> gone for good.
-- Locks: the job rows, by id. A given id is free again.
WITH held AS MATERIALIZED (
    SELECT id, state
    FROM {schema}.job
    WHERE id = ANY (:ids::uuid[])
    ORDER BY id
    FOR UPDATE
),
waiting AS (
    DELETE FROM {schema}.job
    USING held
    WHERE job.id = held.id
        AND held.state <> 'running'
    RETURNING job.id, job.is_given_id
),
final AS (
    DELETE FROM {schema}.archive
    WHERE id = ANY (:ids::uuid[])
    RETURNING id, state, is_given_id
),
freed AS (
    DELETE FROM {schema}.given_id
    WHERE id IN (
        SELECT id FROM waiting WHERE is_given_id
        UNION ALL
        SELECT id FROM final WHERE is_given_id
    )
)
SELECT id::text, state
FROM held
UNION ALL
SELECT id::text, state
FROM final;
