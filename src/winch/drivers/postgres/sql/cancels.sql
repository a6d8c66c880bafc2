-- cancels: reads the claims of these sessions for which a cancel was requested.
SELECT id::text, token::text, session::text
FROM {schema}.job
WHERE cancel_requested_at IS NOT NULL
    AND state = 'running'
    AND session = ANY (:sessions::uuid[])
ORDER BY id;
