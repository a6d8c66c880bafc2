-- swap_line: the line that is there. What takes its place is written by write_lines.
-- Differs from PostgreSQL: there is one writer at a time, so nothing happens between the look and the write.
SELECT body
FROM winch_book_line
WHERE book = :book
    AND key = :key
    AND (drop_at IS NULL OR drop_at > :now);
