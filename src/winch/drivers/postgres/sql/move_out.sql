-- move_out: the number of the last parcel that left. Locks: the record of the move, so that two movers take turns.
INSERT INTO {schema}.book_line (book, key, body)
VALUES ('parcel', :last_key::text, '0')
ON CONFLICT (book, key) DO UPDATE
SET body = book_line.body
RETURNING body;

-- move_out.open: the parcel that is open.
SELECT body
FROM {schema}.book_line
WHERE book = 'parcel'
    AND key = :open_key::text;

-- move_out.lock: the jobs that do not run. Locks: the job rows, by id, as every other verb.
SELECT id::text
FROM {schema}.job
WHERE id = ANY (:ids::uuid[])
    AND state <> 'running'
ORDER BY id
FOR UPDATE;

-- move_out.keep: a record of the move.
INSERT INTO {schema}.book_line (book, key, body)
VALUES ('parcel', :key::text, :body::text)
ON CONFLICT (book, key) DO UPDATE
SET body = excluded.body;
