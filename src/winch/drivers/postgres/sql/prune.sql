-- prune: completed | cancelled | dead -> gone, when their keeping time is over, and sessions that ended long
-- ago, and unique keys whose time is over, and offers of workers that are gone. Partitions whose day has come are dropped whole; partitions are made ahead.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
forgotten AS (
    DELETE FROM {schema}.session
    WHERE ended_at <= (SELECT now FROM clock) - make_interval(secs => :session_seconds)
),
over AS (
    DELETE FROM {schema}.unique_kept
    WHERE until <= (SELECT now FROM clock)
),
lapsed AS (
    DELETE FROM {schema}.offer
    WHERE until <= clock_timestamp() - interval '1 minute'
)
SELECT {schema}.prune_archive(now, :limit)
FROM clock;

-- prune.waits: signals that were taken, or that no job has waited for, long enough ago; and what jobs waited for
-- that are not blocked any more.
WITH clock AS MATERIALIZED (
    SELECT coalesce(:now::timestamptz, clock_timestamp()) AS now
),
gone AS (
    DELETE FROM {schema}.signal
    USING clock
    WHERE sent_at <= clock.now - make_interval(secs => :taken_seconds)
        AND (taken_by IS NOT NULL OR sent_at <= clock.now - make_interval(secs => :untaken_seconds))
)
DELETE FROM {schema}.waiting
WHERE NOT EXISTS (SELECT FROM {schema}.job WHERE job.id = waiting.job AND job.state = 'blocked');
