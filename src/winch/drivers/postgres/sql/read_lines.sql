-- read_lines: by key, first ones first.
SELECT key, body
FROM {schema}.book_line
WHERE book = :book
    AND key > :after
    AND (:before::text IS NULL OR key < :before::text)
    AND (drop_at IS NULL OR drop_at > coalesce(:now::timestamptz, clock_timestamp()))
ORDER BY key
LIMIT :limit;

-- read_lines.newest: the same, last ones first.
SELECT key, body
FROM {schema}.book_line
WHERE book = :book
    AND key > :after
    AND (:before::text IS NULL OR key < :before::text)
    AND (drop_at IS NULL OR drop_at > coalesce(:now::timestamptz, clock_timestamp()))
ORDER BY key DESC
LIMIT :limit;
