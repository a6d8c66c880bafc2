-- Unique keys that are held for a time, also when the job is final by then.
CREATE TABLE winch_unique_kept (
    key TEXT PRIMARY KEY NOT NULL,
    job TEXT NOT NULL,
    until INTEGER NOT NULL
) STRICT;
-- Serves prune.
CREATE INDEX winch_unique_kept_until ON winch_unique_kept (until);
