-- forget_signals: deletes those of these that no job has taken. signals: a JSON list of names and ids.
DELETE FROM winch_signal
WHERE taken_by IS NULL
    AND (name, id) IN (
        SELECT value ->> 0, value ->> 1
        FROM json_each(:signals)
    )
RETURNING id;
