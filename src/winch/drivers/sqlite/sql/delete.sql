-- delete: removes jobs that are not running. Live ones are marked, then deleted: the mark shows the
-- triggers for events a deletion from a move to the archive.
UPDATE winch_job
SET deleted_at = :now
WHERE id IN (SELECT value FROM json_each(:ids))
    AND state <> 'running';

-- delete.live: the marked ones go.
DELETE FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids))
    AND deleted_at IS NOT NULL;

-- delete.mark_kept: the same for final ones, where the mark distinguishes a deletion from prune and retry.
UPDATE winch_archive
SET deleted_at = :now
WHERE id IN (SELECT value FROM json_each(:ids));

-- delete.kept: the marked ones go.
DELETE FROM winch_archive
WHERE id IN (SELECT value FROM json_each(:ids));
