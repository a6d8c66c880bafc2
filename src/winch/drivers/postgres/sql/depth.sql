-- depth: ready jobs of a queue, counted up to a cap, and for how many seconds the first in line have been ready.
SELECT
    (SELECT count(*) FROM (
        SELECT FROM {schema}.job WHERE queue = :queue AND state = 'ready' LIMIT :cap
    ) AS counted),
    (SELECT extract(epoch FROM coalesce(:now::timestamptz, clock_timestamp()) - min(run_at)) FROM (
        SELECT run_at FROM {schema}.job WHERE queue = :queue AND state = 'ready' ORDER BY sort_key LIMIT 100
    ) AS first);
