-- Dead jobs are grouped by what they died of, and trimmed by number and size.

-- Set for dead jobs only. Those that died before this step have none and are in no group.
ALTER TABLE winch_archive ADD COLUMN fingerprint TEXT;

-- Serves groups and the list of one group.
CREATE INDEX winch_archive_alike ON winch_archive (fingerprint, id, task, queue, finished_at)
WHERE fingerprint IS NOT NULL;

-- Serves trim.
CREATE INDEX winch_archive_dead ON winch_archive (task, finished_at, id) WHERE state = 'dead';

-- Unique keys: the live row is what holds its key, so whatever ends the job frees it. Serves enqueue and retry.
-- Differs from PostgreSQL, which has a table of keys: here one writer at a time sees all that came before.
CREATE UNIQUE INDEX winch_job_unique ON winch_job (unique_key) WHERE unique_key IS NOT NULL;
