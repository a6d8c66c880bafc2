-- oldest_snapshot: the age in seconds of the oldest transaction that keeps vacuum from removing dead rows.
-- The snapshot of a standby's feedback has no beginning, and vacuum respects no other vacuum's.
SELECT coalesce(max(age), 0)::double precision
FROM (
    SELECT extract(epoch FROM clock_timestamp() - xact_start) AS age
    FROM pg_stat_activity
    WHERE coalesce(backend_xmin, backend_xid) IS NOT NULL
        AND pid <> pg_backend_pid()
        AND datname = current_database()
        AND backend_type <> 'autovacuum worker'
    UNION ALL
    SELECT extract(epoch FROM clock_timestamp() - prepared)
    FROM pg_prepared_xacts
    WHERE database = current_database()
) AS held;
