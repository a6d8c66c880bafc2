-- results: how jobs stand, and their results, in one look.
SELECT id::text, state, task, NULL
FROM {schema}.job
WHERE id = ANY (:ids::uuid[])
UNION ALL
SELECT id::text, state, task, result
FROM {schema}.archive
WHERE id = ANY (:ids::uuid[]);

-- results.together: the same for jobs whose ids lie together, as those of a flow's members do: each partition of the
-- archive is walked once, where looking for a thousand ids takes a thousand looks into each.
SELECT id::text, state, task, NULL
FROM {schema}.job
WHERE id BETWEEN :first::uuid AND :last::uuid
UNION ALL
SELECT id::text, state, task, result
FROM {schema}.archive
WHERE id BETWEEN :first::uuid AND :last::uuid;
