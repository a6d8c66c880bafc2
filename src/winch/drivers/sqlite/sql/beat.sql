-- beat: extends the leases of live sessions; touches no job.
UPDATE winch_session
SET lease_until = :now + lease,
    beats = beats + 1
WHERE id IN (SELECT value FROM json_each(:sessions))
    AND ended_at IS NULL
RETURNING id, beats;
