-- The number of a job's change has no end that a job could reach: a change that cannot be numbered fails its verb.

ALTER TABLE {schema}.job_event ALTER COLUMN v TYPE bigint;
