-- held: the tokens under which jobs of a session run.
SELECT DISTINCT token
FROM winch_job
WHERE state = 'running'
    AND session = :session
ORDER BY token;
