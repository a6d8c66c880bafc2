-- standing: locks the rows of claims that are live, so that a write about them that is under way is waited
-- for. Where they stand then is a second look (finish.ended), with a snapshot as new as that write.
SELECT id::text
FROM {schema}.job
WHERE id = ANY (:ids::uuid[])
ORDER BY id
FOR UPDATE;
