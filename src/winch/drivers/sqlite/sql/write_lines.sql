-- write_lines: replaces the line of that book and key.
INSERT INTO winch_book_line (book, key, body, drop_at)
VALUES (:book, :key, :body, :drop_at)
ON CONFLICT (book, key) DO UPDATE
SET body = excluded.body,
    drop_at = excluded.drop_at;

-- write_lines.over: a bounded number of lines whose time is over, so that no loop of its own is needed.
DELETE FROM winch_book_line
WHERE (book, key) IN (
    SELECT book, key
    FROM winch_book_line
    WHERE drop_at <= :now
    LIMIT 200
);
