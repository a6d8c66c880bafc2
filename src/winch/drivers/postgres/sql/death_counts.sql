-- death_counts: how many jobs of each of these groups died in each step of time, over an index that has all of it.
SELECT fingerprint, place, count(*)
FROM (
    SELECT
        fingerprint,
        floor(extract(epoch FROM finished_at - :since::timestamptz) / :step::double precision)::integer AS place
    FROM {schema}.archive
    WHERE fingerprint = ANY (:fingerprints::text[])
        AND finished_at >= :since::timestamptz
        AND finished_at < :since::timestamptz + :count::integer * make_interval(secs => :step::double precision)
) AS deaths
GROUP BY fingerprint, place;
