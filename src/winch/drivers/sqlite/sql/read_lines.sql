-- read_lines: by key, first ones first.
SELECT key, body
FROM winch_book_line
WHERE book = :book
    AND key > :after
    AND (:before IS NULL OR key < :before)
    AND (drop_at IS NULL OR drop_at > :now)
ORDER BY key
LIMIT :limit;

-- read_lines.newest: the same, last ones first.
SELECT key, body
FROM winch_book_line
WHERE book = :book
    AND key > :after
    AND (:before IS NULL OR key < :before)
    AND (drop_at IS NULL OR drop_at > :now)
ORDER BY key DESC
LIMIT :limit;
