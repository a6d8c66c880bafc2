-- strike_lines: removes them for good.
DELETE FROM {schema}.book_line
WHERE book = :book
    AND key = ANY (:keys::text[])
RETURNING key;
