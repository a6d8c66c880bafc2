-- held: the live claims of a session.
SELECT id::text, token::text
FROM {schema}.job
WHERE state = 'running'
    AND session = :session::uuid
ORDER BY id;
