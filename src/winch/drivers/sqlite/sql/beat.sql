-- beat: extends the leases of live sessions; touches no job. Commands to a session are records whose keys begin
-- with its id and '/'; '0' is the character after that.
UPDATE winch_session
SET lease_until = :now + lease,
    beats = beats + 1
WHERE id IN (SELECT value FROM json_each(:sessions))
    AND ended_at IS NULL
RETURNING id, beats, (
    SELECT json_group_array(json_array(key, body))
    FROM (
        SELECT key, body
        FROM winch_book_line
        WHERE book = :book
            AND key > winch_session.id || '/'
            AND key < winch_session.id || '0'
            AND (drop_at IS NULL OR drop_at > :now)
        ORDER BY key
        LIMIT :most
    )
);
