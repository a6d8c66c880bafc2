-- unique_keys: the keys that begin so, and the live jobs that hold them.
SELECT unique_key, id
FROM winch_job INDEXED BY winch_job_unique
WHERE unique_key IS NOT NULL
    AND unique_key >= :prefix
    AND unique_key < :prefix || char(1114111)
ORDER BY unique_key
LIMIT :limit;
