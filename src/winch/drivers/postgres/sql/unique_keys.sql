-- unique_keys: some of the keys that begin so, and the live jobs that hold them; the key itself first.
(
    SELECT key, job::text
    FROM {schema}.unique_key
    WHERE key = :prefix::text
)
UNION
(
    SELECT key, job::text
    FROM {schema}.unique_key
    WHERE starts_with(key, :prefix::text)
    ORDER BY key
    LIMIT :limit
)
LIMIT :limit;
