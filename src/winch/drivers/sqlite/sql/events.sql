-- events: the changes after this one, in the order they were made.
SELECT seq, job, v, kind, state, token, by_token, session, attempt, at
FROM winch_job_event
WHERE seq > :after
ORDER BY seq
LIMIT :limit;
