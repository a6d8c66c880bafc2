-- swap_line: keeps a line where there is none, or one whose time is over, or that begins with what is expected. Locks:
-- waits for another writer of this line, and then judges what that one has left.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
)
INSERT INTO {schema}.book_line (book, key, body, drop_at)
SELECT :book::text, :key::text, :body::text, clock.now + make_interval(secs => :keep::double precision)
FROM clock
ON CONFLICT (book, key) DO UPDATE
SET body = excluded.body,
    drop_at = excluded.drop_at
WHERE book_line.drop_at <= coalesce(:now::timestamptz, clock_timestamp())
    OR starts_with(book_line.body, :instead_of::text)
RETURNING key;

-- swap_line.there: the line that is there instead. A statement of its own, with a look as new as what was waited for.
SELECT body
FROM {schema}.book_line
WHERE book = :book::text
    AND key = :key::text;
