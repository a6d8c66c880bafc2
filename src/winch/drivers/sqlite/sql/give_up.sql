-- give_up: running -> ready | cancelled, for claims whose answer was lost.
SELECT id
FROM winch_job
WHERE state = 'running'
    AND session = :session
    AND token IN (SELECT value FROM json_each(:tokens))
ORDER BY id;
