-- has_gated: whether a ready job of these queues has gates; one look for each of the two indexes.
SELECT EXISTS (
    SELECT
    FROM {schema}.job
    WHERE queue = ANY (:queues::text[]) AND filed = 'ready' AND gate IS NOT NULL AND tenant IS NULL
) OR EXISTS (
    SELECT
    FROM {schema}.job
    WHERE queue = ANY (:queues::text[]) AND filed = 'ready' AND gate IS NOT NULL AND tenant IS NOT NULL
);
