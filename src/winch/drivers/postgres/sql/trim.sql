-- trim: dead -> gone, where a task has too many. First the tasks that have dead jobs, each with the options
-- of its newest: as many steps in the index as there are such tasks, whatever the number of jobs.
WITH RECURSIVE named (task) AS (
    (
        SELECT task
        FROM {schema}.archive
        WHERE state = 'dead'
            AND (:task::text IS NULL OR task = :task::text)
        ORDER BY task
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT archive.task
        FROM {schema}.archive
        WHERE state = 'dead'
            AND :task::text IS NULL
            AND archive.task > named.task
        ORDER BY archive.task
        LIMIT 1
    )
    FROM named
    WHERE named.task IS NOT NULL
)
SELECT named.task, (
    SELECT options
    FROM {schema}.archive
    WHERE state = 'dead'
        AND archive.task = named.task
        AND (:queue::text IS NULL OR queue = :queue::text)
    ORDER BY finished_at DESC, id DESC
    LIMIT 1
)
FROM named
WHERE named.task IS NOT NULL;

-- trim.many: the dead jobs of each task past the newest so many, over the index alone. One statement for
-- all of them, because to plan it takes longer than to find that nothing is to be done.
SELECT over.id::text
FROM unnest(:tasks::text[], :counts::integer[]) AS kept (task, count)
CROSS JOIN LATERAL (
    SELECT archive.id
    FROM {schema}.archive
    WHERE archive.state = 'dead'
        AND archive.task = kept.task
    ORDER BY archive.finished_at DESC, archive.id DESC
    OFFSET kept.count
) AS over
WHERE NOT EXISTS (
    SELECT
    FROM {schema}.archive
    WHERE archive.id = over.id
        AND strpos(archive.headers, '"winch-awaited":"') > 0
        AND {schema}.still_awaited(archive.headers)
    OFFSET 0 -- one by one, and no more than are asked for
)
LIMIT :limit;

-- trim.over: the dead jobs of one task past any of the limits.
SELECT id::text
FROM (
    SELECT
        archive.id,
        archive.finished_at,
        archive.headers,
        row_number() OVER newest AS place,
        sum(CASE
            WHEN :bytes::bigint IS NULL THEN 0
            ELSE octet_length(args) + octet_length(history::text) + coalesce(octet_length(log), 0)
                + coalesce(octet_length(checkpoint), 0)
        END) OVER newest AS total
    FROM {schema}.archive
    WHERE state = 'dead'
        AND task = :task::text
        AND (:queue::text IS NULL OR queue = :queue::text)
    WINDOW newest AS (ORDER BY finished_at DESC, id DESC)
) AS ranked
WHERE (
        place > :count::integer
        OR total > :bytes::bigint
        OR finished_at <= coalesce(:now::timestamptz, clock_timestamp()) - make_interval(secs => :older_seconds)
    )
    AND (strpos(headers, '"winch-awaited":"') > 0 AND {schema}.still_awaited(headers)) IS NOT TRUE
ORDER BY finished_at, ranked.id
LIMIT :limit;

-- trim.matched: how many they are.
SELECT count(*)
FROM (
    SELECT
        archive.id,
        archive.finished_at,
        archive.headers,
        row_number() OVER newest AS place,
        sum(CASE
            WHEN :bytes::bigint IS NULL THEN 0
            ELSE octet_length(args) + octet_length(history::text) + coalesce(octet_length(log), 0)
                + coalesce(octet_length(checkpoint), 0)
        END) OVER newest AS total
    FROM {schema}.archive
    WHERE state = 'dead'
        AND task = :task::text
        AND (:queue::text IS NULL OR queue = :queue::text)
    WINDOW newest AS (ORDER BY finished_at DESC, id DESC)
) AS ranked
WHERE (
        place > :count::integer
        OR total > :bytes::bigint
        OR finished_at <= coalesce(:now::timestamptz, clock_timestamp()) - make_interval(secs => :older_seconds)
    )
    AND (strpos(headers, '"winch-awaited":"') > 0 AND {schema}.still_awaited(headers)) IS NOT TRUE;

-- trim.delete: these go, and ids that callers gave are free again. Locks: the archive's rows.
WITH gone AS (
    DELETE FROM {schema}.archive
    WHERE id = ANY (:ids::uuid[])
        AND state = 'dead'
        AND (strpos(headers, '"winch-awaited":"') > 0 AND {schema}.still_awaited(headers)) IS NOT TRUE
    RETURNING id, is_given_id
),
freed AS (
    DELETE FROM {schema}.given_id
    WHERE id IN (SELECT id FROM gone WHERE is_given_id)
)
SELECT count(*)
FROM gone;
