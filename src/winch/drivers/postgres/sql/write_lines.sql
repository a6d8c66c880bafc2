-- write_lines: replaces the line of that book and key. In the order of the keys, so that two writers of the
-- same lines wait for each other and never in a circle; a key given twice has its last body.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
given AS (
    SELECT DISTINCT ON (book, key COLLATE "C") book, key, body, keep
    FROM unnest(:books::text[], :keys::text[], :bodies::text[], :keeps::double precision[])
        WITH ORDINALITY AS line (book, key, body, keep, place)
    ORDER BY book, key COLLATE "C", place DESC
)
INSERT INTO {schema}.book_line (book, key, body, drop_at)
SELECT given.book, given.key, given.body, clock.now + make_interval(secs => given.keep)
FROM given, clock
ORDER BY given.book, given.key COLLATE "C"
ON CONFLICT (book, key) DO UPDATE
SET body = excluded.body,
    drop_at = excluded.drop_at;

-- write_lines.over: a bounded number of lines whose time is over, so that no loop of its own is needed.
-- Skips what another writer removes at the same time.
DELETE FROM {schema}.book_line
WHERE ctid = ANY (ARRAY(
    SELECT ctid
    FROM {schema}.book_line
    WHERE drop_at <= coalesce(:now::timestamptz, clock_timestamp())
    LIMIT 200
    FOR UPDATE SKIP LOCKED
));
