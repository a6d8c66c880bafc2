-- end_session: ends the session first, so that a claim on its way finds it ended.
UPDATE winch_session
SET ended_at = :now,
    end_reason = :reason
WHERE id = :session
    AND ended_at IS NULL;

-- end_session.running: running -> ready | cancelled | dead, for what the session still holds.
SELECT id
FROM winch_job
WHERE state = 'running'
    AND session = :session
ORDER BY id;
