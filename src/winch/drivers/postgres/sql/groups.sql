-- groups: the dead jobs by fingerprint, over an index that holds nothing else. get reads the samples.
-- By code point, as other stores order texts; there is no max of uuid.
SELECT
    fingerprint, count(*), min(finished_at), max(finished_at), max(id::text COLLATE "C")
FROM {schema}.archive
WHERE fingerprint IS NOT NULL
    AND (:task::text IS NULL OR task = :task::text)
    AND (:queue::text IS NULL OR queue = :queue::text)
GROUP BY fingerprint
ORDER BY count(*) DESC, max(finished_at) DESC, fingerprint COLLATE "C"
LIMIT :limit;
