-- cancels: reads the claims of these sessions for which a cancel was requested.
SELECT id, token, session
FROM winch_job
WHERE state = 'running'
    AND cancel_requested_at IS NOT NULL
    AND session IN (SELECT value FROM json_each(:sessions))
ORDER BY id;
