-- list_jobs: ids of live jobs, newest first; get reads the page. A cursor is always given, so
-- that every page is a search in the primary key.
SELECT id
FROM winch_job
WHERE id < :after
    AND id >= :first
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:task IS NULL OR task = :task)
    AND (:queue IS NULL OR queue = :queue)
    AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) AS tag WHERE tag.value = :tag))
ORDER BY id DESC
LIMIT :limit;

-- list_jobs.running: the same for running jobs only, which are few among many that wait.
SELECT id
FROM winch_job INDEXED BY winch_job_running
WHERE state = 'running'
    AND id < :after
    AND id >= :first
    AND (:task IS NULL OR task = :task)
    AND (:queue IS NULL OR queue = :queue)
    AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) AS tag WHERE tag.value = :tag))
ORDER BY id DESC
LIMIT :limit;

-- list_jobs.due: the same for scheduled and retrying jobs, of one state or both. It looks at all of them, in their index
-- alone, which sorts 100,000 within 10 ms.
SELECT id
FROM winch_job INDEXED BY winch_job_due
WHERE (state = 'scheduled' OR state = 'retrying')
    AND (:state IS NULL OR state = :state)
    AND id < :after
    AND id >= :first
ORDER BY id DESC
LIMIT :limit;

-- list_jobs.some_due: the same of a task, a queue or a tag, for which it reads the jobs.
SELECT id
FROM winch_job INDEXED BY winch_job_due
WHERE (state = 'scheduled' OR state = 'retrying')
    AND (:state IS NULL OR state = :state)
    AND id < :after
    AND id >= :first
    AND (:task IS NULL OR task = :task)
    AND (:queue IS NULL OR queue = :queue)
    AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) AS tag WHERE tag.value = :tag))
ORDER BY id DESC
LIMIT :limit;

-- list_jobs.blocked: the same for blocked jobs.
SELECT id
FROM winch_job INDEXED BY winch_job_blocked
WHERE state = 'blocked'
    AND id < :after
    AND id >= :first
    AND (:task IS NULL OR task = :task)
    AND (:queue IS NULL OR queue = :queue)
    AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) AS tag WHERE tag.value = :tag))
ORDER BY id DESC
LIMIT :limit;

-- list_jobs.waiting: how many jobs the indexes of scheduled and retrying, and of blocked jobs have, up to `most` each.
SELECT
    (
        SELECT count(*) FROM (
            SELECT 1 FROM winch_job INDEXED BY winch_job_due WHERE state = 'scheduled' OR state = 'retrying' LIMIT :most
        )
    ),
    (SELECT count(*) FROM (SELECT 1 FROM winch_job INDEXED BY winch_job_blocked WHERE state = 'blocked' LIMIT :most));

-- list_jobs.kept: the same for final jobs.
SELECT id
FROM winch_archive
WHERE id < :after
    AND id >= :first
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:task IS NULL OR task = :task)
    AND (:queue IS NULL OR queue = :queue)
    AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) AS tag WHERE tag.value = :tag))
ORDER BY id DESC
LIMIT :limit;

-- list_jobs.unusual: the same for cancelled and dead jobs only, which are few among many completed.
SELECT id
FROM winch_archive INDEXED BY winch_archive_unusual
WHERE (state = 'cancelled' OR state = 'dead')
    AND id < :after
    AND id >= :first
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:task IS NULL OR task = :task)
    AND (:queue IS NULL OR queue = :queue)
    AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) AS tag WHERE tag.value = :tag))
ORDER BY id DESC
LIMIT :limit;

-- list_jobs.alike: the same for the dead jobs of one group.
SELECT id
FROM winch_archive INDEXED BY winch_archive_alike
WHERE fingerprint = :fingerprint
    AND id < :after
    AND id >= :first
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:task IS NULL OR task = :task)
    AND (:queue IS NULL OR queue = :queue)
    AND (:tag IS NULL OR EXISTS (SELECT 1 FROM json_each(tags) AS tag WHERE tag.value = :tag))
ORDER BY id DESC
LIMIT :limit;

-- list_jobs.floor: the last of so many live jobs below the cursor, where there are so many.
SELECT id
FROM winch_job
WHERE id < :after
ORDER BY id DESC
LIMIT 1 OFFSET :most;

-- list_jobs.kept_floor: the same for final jobs.
SELECT id
FROM winch_archive
WHERE id < :after
ORDER BY id DESC
LIMIT 1 OFFSET :most;
