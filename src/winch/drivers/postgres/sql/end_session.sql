-- end_session: ends the session first. Locks: the session FOR UPDATE: it waits for a claim that is on its way,
-- and a later one finds the session ended.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
mine AS MATERIALIZED (
    SELECT id
    FROM {schema}.session
    WHERE id = :session::uuid
    FOR UPDATE
)
UPDATE {schema}.session
SET ended_at = (SELECT now FROM clock),
    end_reason = :reason
FROM mine
WHERE session.id = mine.id
    AND session.ended_at IS NULL;
