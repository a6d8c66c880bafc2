-- scopes: what scopes remember, and how many jobs wait at each.
SELECT
    key, state,
    (SELECT count(*) FROM winch_job WHERE winch_job.state = 'blocked' AND winch_job.gate = winch_gate.key)
FROM winch_gate
WHERE key >= 'scope:'
    AND key < 'scope;'
    AND state IS NOT NULL
ORDER BY key;
