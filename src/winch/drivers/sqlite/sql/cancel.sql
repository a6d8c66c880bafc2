-- cancel: scheduled | blocked | ready | retrying -> cancelled, by record.archive. A running job keeps
-- running with a request, which its claim's own end carries out; this is the request.
UPDATE winch_job
SET cancel_requested_at = :now,
    history = :history,
    reason = :reason,
    changed_at = :now
WHERE id = :id
    AND state = 'running'
    AND cancel_requested_at IS NULL;
