-- groups: the dead jobs by fingerprint, over an index that holds nothing else. get reads the samples.
SELECT fingerprint, count(*), min(finished_at), max(finished_at), max(id)
FROM winch_archive INDEXED BY winch_archive_alike
WHERE fingerprint IS NOT NULL
    AND (:task IS NULL OR task = :task)
    AND (:queue IS NULL OR queue = :queue)
GROUP BY fingerprint
ORDER BY count(*) DESC, max(finished_at) DESC, fingerprint
LIMIT :limit;
