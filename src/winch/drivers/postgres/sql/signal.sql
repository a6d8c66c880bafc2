-- signal: keeps a signal until a job takes it. One with the same id changes nothing. Locks: waits for another of the
-- same id that is on its way; no row that a job needs.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
sent AS (
    INSERT INTO {schema}.signal (name, id, payload, sent_at)
    SELECT :name::text, :id::text, :payload::text, now
    FROM clock
    ON CONFLICT DO NOTHING
    RETURNING name
),
noted AS (
    INSERT INTO {schema}.recheck (key)
    SELECT 'signal:' || name
    FROM sent
)
SELECT {schema}.ring(NULL, true)
FROM sent;
