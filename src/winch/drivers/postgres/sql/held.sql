-- held: the live claims of a session.
SELECT id::text, token::text
FROM {schema}.claimed
WHERE session = :session::uuid
ORDER BY id;
