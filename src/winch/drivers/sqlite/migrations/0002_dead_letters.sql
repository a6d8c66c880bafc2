-- Dead jobs are grouped by what they died of, and trimmed by number and size.

-- Set for dead jobs only. Those that died before this step have none and are in no group.
ALTER TABLE winch_archive ADD COLUMN fingerprint TEXT;

-- Serves groups and the list of one group.
CREATE INDEX winch_archive_alike ON winch_archive (fingerprint, id, task, queue, finished_at)
WHERE fingerprint IS NOT NULL;

-- Serves trim.
CREATE INDEX winch_archive_dead ON winch_archive (task, finished_at, id) WHERE state = 'dead';
