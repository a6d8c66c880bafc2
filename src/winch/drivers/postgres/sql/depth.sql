-- depth: ready jobs of a queue, counted up to a cap, and for how many seconds the first in line have been ready.
-- Plain jobs and those with gates apart, because each kind has an index of its own.
SELECT
    least(:cap, (SELECT count(*) FROM (
        SELECT FROM {schema}.job WHERE queue = :queue AND filed = 'ready' AND gate IS NULL AND state = 'ready' LIMIT :cap
    ) AS plain) + (SELECT count(*) FROM (
        SELECT FROM {schema}.job WHERE queue = :queue AND filed = 'ready' AND state = 'ready' AND gate IS NOT NULL LIMIT :cap
    ) AS gated)),
    (SELECT extract(epoch FROM coalesce(:now::timestamptz, clock_timestamp()) - min(run_at)) FROM (
        SELECT run_at
        FROM {schema}.job
        WHERE queue = :queue AND filed = 'ready' AND gate IS NULL AND state = 'ready'
        ORDER BY sort_key
        LIMIT 100
    ) AS first);
