-- key_holders: the live jobs that hold these unique keys.
SELECT unique_key.key, job.id::text, job.state
FROM {schema}.unique_key
JOIN {schema}.job ON job.id = unique_key.job
WHERE unique_key.key = ANY (:keys::text[]);
