-- rebind: scheduled | blocked | ready | retrying stay what they are, and carry other options and another priority,
-- where both are what the caller has read. changed_at stays: no state changes.
UPDATE winch_job
SET options = json_extract(change.value, '$.to_options'),
    priority = json_extract(change.value, '$.to_priority'),
    sort_key = sort_key - (json_extract(change.value, '$.to_priority') - priority) * :head_start,
    gate = CASE
        WHEN gate IS NULL AND substr(json_extract(change.value, '$.to_options'), 1, 9) = '{"gates":' THEN ''
        ELSE gate
    END
FROM json_each(:changes) AS change
WHERE winch_job.id = json_extract(change.value, '$.id')
    AND winch_job.state IN ('scheduled', 'blocked', 'ready', 'retrying')
    AND winch_job.options IS json_extract(change.value, '$.options')
    AND winch_job.priority = json_extract(change.value, '$.priority')
RETURNING winch_job.id;
