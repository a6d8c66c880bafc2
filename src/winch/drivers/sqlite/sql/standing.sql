-- standing: where claims stand. A writing verb, so that it waits for the write that is under way.
SELECT id, token
FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids))
    AND state = 'running';
