-- limits: what is set.
SELECT name, spec, is_live, set_by, set_at
FROM {schema}.limit_set;

-- limits.used: how much of each gate is out.
SELECT held.gate, sum(held.used)::bigint
FROM (
    SELECT gate, least(sum(weight), max(at_once)::bigint * max(weight)) AS used
    FROM {schema}.permit
    WHERE token IS NOT NULL
    GROUP BY gate, session, at_once
) AS held
GROUP BY held.gate;

-- limits.waiting: how many wait at each gate.
SELECT gate, count(*)
FROM {schema}.job
WHERE filed = 'blocked'
    AND gate > ''
GROUP BY gate;

-- limits.queues: queues with a concurrency.
SELECT name, concurrency
FROM {schema}.queue
WHERE concurrency IS NOT NULL;
