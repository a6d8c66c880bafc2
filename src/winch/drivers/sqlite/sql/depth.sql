-- depth: ready jobs of a queue, counted up to a cap, and since when the first in line has been ready.
-- Plain jobs and those with gates apart, because each kind has an index of its own.
SELECT
    min(:cap, (SELECT count(*) FROM (
        SELECT 1 FROM winch_job WHERE state = 'ready' AND gate IS NULL AND queue = :queue LIMIT :cap
    )) + (SELECT count(*) FROM (
        SELECT 1 FROM winch_job WHERE state = 'ready' AND gate IS NOT NULL AND queue = :queue LIMIT :cap
    ))),
    (SELECT min(run_at) FROM (
        SELECT run_at
        FROM winch_job
        WHERE state = 'ready' AND gate IS NULL AND queue = :queue
        ORDER BY sort_key
        LIMIT 100
    ));
