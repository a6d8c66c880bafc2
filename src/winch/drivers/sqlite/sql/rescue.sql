-- rescue: ends sessions whose lease is over, so that a late beat or claim finds them ended.
UPDATE session
SET ended_at = :now,
    end_reason = 'lease over'
WHERE ended_at IS NULL
    AND lease_until <= :as_of;

-- rescue.orphans: running -> ready | cancelled | dead, for jobs of sessions that are ended or unknown.
-- Walks the index of running jobs, which is as long as the fleet has slots.
SELECT id
FROM job INDEXED BY job_running
WHERE state = 'running'
    AND NOT EXISTS (SELECT 1 FROM session WHERE session.id = job.session AND ended_at IS NULL)
ORDER BY id
LIMIT :limit;
