-- trim: dead -> gone, where a task has too many. First the tasks that have dead jobs, each with the options
-- of its newest: as many steps in the index as there are such tasks, whatever the number of jobs.
WITH RECURSIVE named (task) AS (
    SELECT min(task)
    FROM winch_archive INDEXED BY winch_archive_dead
    WHERE state = 'dead'
    UNION ALL
    SELECT (
        SELECT min(winch_archive.task)
        FROM winch_archive INDEXED BY winch_archive_dead
        WHERE state = 'dead'
            AND winch_archive.task > named.task
    )
    FROM named
    WHERE named.task IS NOT NULL
)
SELECT task, (
    SELECT options
    FROM winch_archive INDEXED BY winch_archive_dead
    WHERE state = 'dead'
        AND winch_archive.task = named.task
        AND (:queue IS NULL OR queue = :queue)
    ORDER BY finished_at DESC, id DESC
    LIMIT 1
)
FROM named
WHERE task IS NOT NULL
    AND (:task IS NULL OR task = :task);

-- trim.many: the dead jobs of a task past the newest so many, over the index alone.
SELECT id, headers
FROM winch_archive INDEXED BY winch_archive_dead
WHERE state = 'dead'
    AND task = :task
ORDER BY finished_at DESC, id DESC
LIMIT :limit OFFSET :count + :skip;

-- trim.over: the dead jobs of a task past any of the limits.
SELECT id, headers
FROM (
    SELECT
        id,
        headers,
        finished_at,
        row_number() OVER newest AS place,
        sum(CASE
            WHEN :bytes IS NULL THEN 0
            ELSE length(CAST(args AS BLOB)) + length(CAST(history AS BLOB))
                + coalesce(length(CAST(log AS BLOB)), 0) + coalesce(length(CAST(checkpoint AS BLOB)), 0)
        END) OVER newest AS total
    FROM winch_archive INDEXED BY winch_archive_dead
    WHERE state = 'dead'
        AND task = :task
        AND (:queue IS NULL OR queue = :queue)
    WINDOW newest AS (ORDER BY finished_at DESC, id DESC)
) AS ranked
WHERE (place > :count OR total > :bytes OR finished_at <= :before)
    AND (NOT :only_awaited OR instr(headers, '"winch-awaited"') > 0)
ORDER BY finished_at, id
LIMIT :limit OFFSET :skip;

-- trim.matched: how many they are.
SELECT count(*)
FROM (
    SELECT
        id,
        finished_at,
        row_number() OVER newest AS place,
        sum(CASE
            WHEN :bytes IS NULL THEN 0
            ELSE length(CAST(args AS BLOB)) + length(CAST(history AS BLOB))
                + coalesce(length(CAST(log AS BLOB)), 0) + coalesce(length(CAST(checkpoint AS BLOB)), 0)
        END) OVER newest AS total
    FROM winch_archive INDEXED BY winch_archive_dead
    WHERE state = 'dead'
        AND task = :task
        AND (:queue IS NULL OR queue = :queue)
    WINDOW newest AS (ORDER BY finished_at DESC, id DESC)
) AS ranked
WHERE place > :count
    OR total > :bytes
    OR finished_at <= :before;

-- trim.delete: these go.
DELETE FROM winch_archive
WHERE id IN (SELECT value FROM json_each(:ids))
    AND state = 'dead'
RETURNING 1;
