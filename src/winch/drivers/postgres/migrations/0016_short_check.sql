-- What a job may be, said shorter: every statement that stores jobs reads the constraint anew from its text, which for
-- one job was a third of the server's work apart from the commit. It is the one before without the part that says
-- where a running job is filed: only claims write that, and they leave it or set it to 'running'.
-- Not looked at for the jobs that are there, which would keep everybody out for as long; the next step does that.
ALTER TABLE {schema}.job
    DROP CONSTRAINT job_is_possible,
    ADD CONSTRAINT job_is_possible CHECK (
        attempt >= 0
        AND CASE
            WHEN token IS NULL THEN
                filed = state AND state IN ('ready', 'scheduled', 'retrying', 'blocked')
            ELSE
                state = 'running' AND session IS NOT NULL AND claimed_at IS NOT NULL
        END
    ) NOT VALID;
