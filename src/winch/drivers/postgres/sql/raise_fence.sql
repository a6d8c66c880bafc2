-- raise_fence: whether no fenced enqueue is under way. Never waits, because new ones would stand behind it.
SELECT pg_try_advisory_xact_lock(hashtextextended('{schema} winch move', 0));

-- raise_fence.keep: the fence, if it is higher than before.
INSERT INTO {schema}.book_line (book, key, body)
VALUES ('parcel', 'fence', :number::bigint::text)
ON CONFLICT (book, key) DO UPDATE
SET body = excluded.body
WHERE book_line.body::bigint < excluded.body::bigint;
