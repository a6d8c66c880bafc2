-- beat: extends the leases of live sessions. Locks: the session rows, without their keys, so that claims go
-- on; touches no job. One statement whatever the number of sessions and of running jobs. Commands to a session are
-- records whose keys begin with its id and '/'; '0' is the character after that.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
beaten AS (
    UPDATE {schema}.session
    SET lease_until = (SELECT now FROM clock) + make_interval(secs => lease_seconds),
        beats = beats + 1
    WHERE id = ANY (:sessions::uuid[])
        AND ended_at IS NULL
    RETURNING id, beats
)
SELECT
    clock.now, beaten.id::text, beaten.beats,
    (
        SELECT json_agg(json_build_array(command.key, command.body) ORDER BY command.key)::text
        FROM (
            SELECT key, body
            FROM {schema}.book_line
            WHERE book = :book
                AND key > (beaten.id::text || '/') COLLATE "C"
                AND key < (beaten.id::text || '0') COLLATE "C"
                AND (drop_at IS NULL OR drop_at > clock.now)
            ORDER BY key
            LIMIT :most
        ) AS command
    )
FROM clock
LEFT JOIN beaten ON true;
