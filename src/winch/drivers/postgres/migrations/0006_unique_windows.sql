-- Unique keys that are held for a time, also when the job is final by then.
CREATE TABLE {schema}.unique_kept (
    key text PRIMARY KEY,
    job uuid NOT NULL,
    until timestamptz NOT NULL
);
CREATE INDEX unique_kept_until ON {schema}.unique_kept (until);
COMMENT ON INDEX {schema}.unique_kept_until IS 'serves prune';
