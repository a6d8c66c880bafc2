-- scopes: what scopes remember, and how many jobs wait at each.
SELECT
    key, state,
    (SELECT count(*) FROM {schema}.job WHERE job.filed = 'blocked' AND job.gate = gate.key)
FROM {schema}.gate
WHERE key >= 'scope:'
    AND key < 'scope;'
    AND state IS NOT NULL
ORDER BY key;
