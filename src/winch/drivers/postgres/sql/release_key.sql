-- release_key: the live job goes on without its unique key. Locks: the job row before the key, as the end of a job does.
UPDATE {schema}.job
SET unique_key = NULL,
    history = {schema}.grown(job.history, {schema}.note(
        'key released', coalesce(:now::timestamptz, clock_timestamp()), :by::text, NULL
    ))
WHERE job.id = (SELECT unique_key.job FROM {schema}.unique_key WHERE unique_key.key = :key)
    AND job.unique_key = :key
RETURNING job.id::text;

-- release_key.free: the key itself, once the job does not have it.
DELETE FROM {schema}.unique_key
WHERE key = :key
    AND job = :id::uuid;

-- release_key.kept: nor does a final job hold it for a time.
DELETE FROM {schema}.unique_kept
WHERE key = :key;
