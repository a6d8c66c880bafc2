-- held: the live claims of a session.
SELECT id, token
FROM winch_job
WHERE state = 'running'
    AND session = :session
ORDER BY id;
