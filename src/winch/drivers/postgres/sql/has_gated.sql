-- has_gated: whether a ready job of these queues has gates, one look for each of the two indexes; or one of them has
-- a rule.
SELECT EXISTS (
    SELECT
    FROM {schema}.job
    WHERE queue = ANY (:queues::text[]) AND filed = 'ready' AND state = 'ready' AND gate IS NOT NULL AND tenant IS NULL
) OR EXISTS (
    SELECT
    FROM {schema}.job
    WHERE queue = ANY (:queues::text[]) AND filed = 'ready' AND state = 'ready' AND gate IS NOT NULL AND tenant IS NOT NULL
) OR EXISTS (
    SELECT
    FROM {schema}.queue
    WHERE name = ANY (:queues::text[]) AND (concurrency IS NOT NULL OR is_strict)
);
