-- counts: how many jobs are in each state, counted up to a cap each.
SELECT 'ready', count(*)
FROM (
    SELECT FROM {schema}.job WHERE filed = 'ready' AND gate IS NULL AND state = 'ready'
    UNION ALL
    SELECT FROM {schema}.job WHERE filed = 'ready' AND state = 'ready' AND gate IS NOT NULL AND tenant IS NULL
    UNION ALL
    SELECT FROM {schema}.job WHERE filed = 'ready' AND state = 'ready' AND gate IS NOT NULL AND tenant IS NOT NULL
    LIMIT :cap
) AS counted
UNION ALL
SELECT 'running', count(*)
FROM (SELECT FROM {schema}.claimed LIMIT :cap) AS counted
UNION ALL
SELECT 'scheduled', count(*)
FROM (SELECT FROM {schema}.job WHERE filed IN ('scheduled', 'retrying') AND filed = 'scheduled' LIMIT :cap) AS counted
UNION ALL
SELECT 'retrying', count(*)
FROM (SELECT FROM {schema}.job WHERE filed IN ('scheduled', 'retrying') AND filed = 'retrying' LIMIT :cap) AS counted
UNION ALL
SELECT 'blocked', count(*)
FROM (SELECT FROM {schema}.job WHERE filed = 'blocked' LIMIT :cap) AS counted
UNION ALL
SELECT 'completed', count(*)
FROM (SELECT FROM {schema}.archive WHERE state = 'completed' LIMIT :cap) AS counted
UNION ALL
SELECT 'cancelled', count(*)
FROM (SELECT FROM {schema}.archive WHERE state <> 'completed' AND state = 'cancelled' LIMIT :cap) AS counted
UNION ALL
SELECT 'dead', count(*)
FROM (SELECT FROM {schema}.archive WHERE state <> 'completed' AND state = 'dead' LIMIT :cap) AS counted;
