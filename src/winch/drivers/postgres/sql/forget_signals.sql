-- forget_signals: deletes those of these that no job has taken. Locks: their rows.
DELETE FROM {schema}.signal
WHERE taken_by IS NULL
    AND (name, id) IN (
        SELECT one.name, one.id
        FROM unnest(:names::text[], :ids::text[]) AS one (name, id)
    )
RETURNING id;
