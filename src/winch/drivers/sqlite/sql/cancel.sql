-- cancel: scheduled | blocked | ready | retrying -> cancelled, by record.archive. A running job keeps
-- running with a request, which its claim's own end carries out; this is the request. A waiting job that has
-- something to undo gets one too, and is made ready by record.put.
UPDATE winch_job
SET cancel_requested_at = :now,
    history = :history,
    reason = :reason,
    gate = CASE WHEN gate IS NOT NULL THEN '' END,
    changed_at = :now
WHERE id = :id
    AND cancel_requested_at IS NULL;
