-- crash: running -> ready | cancelled | dead, for jobs that killed the process they ran in.
-- Fenced by (id, token): the claims among these that are live.
SELECT id, token
FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids))
    AND state = 'running';
