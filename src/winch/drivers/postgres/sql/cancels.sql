-- cancels: reads the claims of these sessions for which a cancel was requested. By a range that has them all: of
-- what is merely not NULL a planner without statistics expects nearly every job.
SELECT id::text, token::text, session::text
FROM {schema}.job
WHERE cancel_requested_at BETWEEN '-infinity' AND 'infinity'
    AND state = 'running'
    AND session = ANY (:sessions::uuid[])
ORDER BY id;
