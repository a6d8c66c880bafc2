-- strike_lines: removes them for good.
DELETE FROM winch_book_line
WHERE book = :book
    AND key IN (SELECT value FROM json_each(:keys))
RETURNING key;
