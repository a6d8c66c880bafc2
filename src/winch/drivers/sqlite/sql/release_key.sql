-- release_key: the live job goes on without its unique key.
UPDATE winch_job
SET unique_key = NULL,
    history = :history
WHERE id = :id;

-- release_key.kept: nor does a final job hold it for a time.
DELETE FROM winch_unique_kept
WHERE key = :key;
