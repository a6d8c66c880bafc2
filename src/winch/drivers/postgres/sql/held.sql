-- held: the tokens under which jobs of a session run.
SELECT DISTINCT token::text
FROM {schema}.job
WHERE state = 'running'
    AND session = :session::uuid
ORDER BY token::text;
