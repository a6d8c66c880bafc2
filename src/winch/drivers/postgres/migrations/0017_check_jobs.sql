-- The look at the jobs that were there before 0016. Nobody waits for it.
ALTER TABLE {schema}.job VALIDATE CONSTRAINT job_is_possible;
