-- results: how jobs stand, and their results, in one look.
SELECT id, state, task, NULL
FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids))
UNION ALL
SELECT id, state, task, result
FROM winch_archive
WHERE id IN (SELECT value FROM json_each(:ids));

-- results.together: the same for jobs whose ids lie together, as those of a flow's members do.
SELECT id, state, task, NULL
FROM winch_job
WHERE id BETWEEN :first AND :last
UNION ALL
SELECT id, state, task, result
FROM winch_archive
WHERE id BETWEEN :first AND :last;
