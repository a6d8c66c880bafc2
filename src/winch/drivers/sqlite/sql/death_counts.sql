-- death_counts: how many jobs of each of these groups died in each step of time, over an index that has all of it.
SELECT fingerprint, (finished_at - :since) / :step, count(*)
FROM winch_archive INDEXED BY winch_archive_alike
WHERE fingerprint IS NOT NULL
    AND fingerprint IN (SELECT value FROM json_each(:fingerprints))
    AND finished_at >= :since
    AND finished_at < :since + :step * :count
GROUP BY 1, 2;
