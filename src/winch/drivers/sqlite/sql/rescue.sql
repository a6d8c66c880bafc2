-- rescue.far: a lease never lasts longer than a lease from now. One does where the clock was set back.
UPDATE winch_session
SET lease_until = :now + lease
WHERE ended_at IS NULL
    AND lease_until > :now
    AND lease_until > :now + lease;

-- rescue: ends sessions whose lease is over, so that a late beat or claim finds them ended.
UPDATE winch_session
SET ended_at = :now,
    end_reason = 'lease over'
WHERE ended_at IS NULL
    AND lease_until <= :as_of;

-- rescue.orphans: running -> ready | cancelled | dead, for jobs of sessions that are ended or unknown.
-- Walks the index of running jobs, which is as long as the fleet has slots.
SELECT id
FROM winch_job INDEXED BY winch_job_running
WHERE state = 'running'
    AND NOT EXISTS (SELECT 1 FROM winch_session WHERE winch_session.id = winch_job.session AND ended_at IS NULL)
ORDER BY id
LIMIT :limit;
