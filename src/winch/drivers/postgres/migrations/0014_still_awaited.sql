-- Final jobs that somebody still needs are kept past their time: their parent is live, somebody waits for their key, or a
-- live member of their flow was stored with members before it. All ids of one flow begin alike.
CREATE FUNCTION {schema}.still_awaited(headers text) RETURNS boolean
    LANGUAGE plpgsql STABLE
AS $$
DECLARE
    said text := substring(headers FROM '"winch-awaited":"([^"]*)"');
    flow text := substring(headers FROM '"winch-flow":"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22})"');
BEGIN
    IF starts_with(said, 'all:') THEN
        IF EXISTS (SELECT FROM {schema}.waiting WHERE key = left(said, 34)) THEN
            RETURN true;
        END IF;
    ELSIF said ~ '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' THEN
        IF EXISTS (SELECT FROM {schema}.job WHERE id = said::uuid) THEN
            RETURN true;
        END IF;
    END IF;
    RETURN flow IS NOT NULL AND EXISTS (
        SELECT
        FROM {schema}.job
        WHERE id BETWEEN (left(flow, 13) || '-0000-0000-000000000000')::uuid
                AND (left(flow, 13) || '-ffff-ffff-ffffffffffff')::uuid
            AND strpos(job.headers, '"winch-inputs"') > 0
            AND strpos(job.headers, flow) > 0
    );
END
$$;

-- Removes final jobs whose keeping time is over and returns how many: partitions whose day has come are
-- dropped whole. In a small partition whose day is still to come the jobs go one by one, at most `most` of
-- them, so that a small store keeps its times exactly; in a big one they wait for the day.
CREATE OR REPLACE FUNCTION {schema}.prune_archive(now timestamptz, most integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '200ms'
AS $$
DECLARE
    utc timestamp := now AT TIME ZONE 'UTC';
    part record;
    gone bigint;
    total bigint := 0;
BEGIN
    -- One at a time: two would only wait for each other's locks.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('{schema} winch prune', 0)) THEN
        RETURN 0;
    END IF;
    BEGIN
        PERFORM {schema}.make_partitions(now);
    EXCEPTION WHEN lock_not_available THEN
        NULL; -- somebody reads the net for long; there is time until tomorrow
    END;
    -- Jobs that somebody still needs leave the partitions that are about to go. None comes into these any more.
    UPDATE {schema}.archive
    SET drop_on = utc::date + 2
    WHERE drop_on <= utc::date
        AND strpos(headers, '"winch-awaited":"') > 0
        AND {schema}.still_awaited(headers);
    FOR part IN
        SELECT
            child.oid::regclass AS name,
            CASE WHEN child.relname ~ '^archive_[0-9]{8}$'
                THEN to_date(right(child.relname, 8), 'YYYYMMDD') END AS day,
            pg_relation_size(child.oid) < 16777216 AS is_small,
            child.reltuples
        FROM pg_inherits
        JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
        WHERE pg_inherits.inhparent = '{schema}.archive'::regclass
        ORDER BY day
    LOOP
        gone := 0;
        IF part.day <= utc::date THEN
            BEGIN
                -- The lock before the count, so that nothing is dropped uncounted.
                LOCK TABLE {schema}.archive IN ACCESS EXCLUSIVE MODE;
                EXECUTE format(
                    'DELETE FROM {schema}.given_id WHERE id IN (SELECT id FROM %s WHERE is_given_id)',
                    part.name
                );
                IF part.is_small THEN
                    EXECUTE format('SELECT count(*) FROM %s', part.name) INTO gone;
                ELSE
                    gone := greatest(part.reltuples::bigint, 0);
                END IF;
                EXECUTE format('DROP TABLE %s', part.name);
            EXCEPTION WHEN lock_not_available THEN
                gone := 0; -- somebody reads the archive for long (a dump); the next call tries again
            END;
        ELSIF total < most
            -- Only these may hold jobs whose time is over although the partition's day has not come.
            AND (part.day IS NULL
                OR part.day <= utc::date + 1
                OR part.day = (date_trunc('month', utc) + interval '1 month')::date)
        THEN
            IF part.is_small THEN
                EXECUTE format(
                    'WITH over AS (
                        SELECT ctid FROM %1$s
                        WHERE {schema}.keep_until(state, keep_seconds, finished_at) <= $1
                            AND (strpos(headers, ''"winch-awaited":"'') > 0
                                AND {schema}.still_awaited(headers)) IS NOT TRUE
                        LIMIT $2
                    ),
                    gone AS (DELETE FROM %1$s WHERE ctid = ANY (ARRAY(SELECT ctid FROM over))
                        RETURNING id, is_given_id),
                    freed AS (DELETE FROM {schema}.given_id
                        WHERE id IN (SELECT id FROM gone WHERE is_given_id))
                    SELECT count(*) FROM gone',
                    part.name
                ) INTO gone USING utc, most - total;
            ELSIF part.day IS NULL THEN
                EXECUTE format(
                    'WITH over AS (SELECT ctid FROM %1$s WHERE drop_on <= $1 LIMIT $2),
                    gone AS (DELETE FROM %1$s WHERE ctid = ANY (ARRAY(SELECT ctid FROM over))
                        RETURNING id, is_given_id),
                    freed AS (DELETE FROM {schema}.given_id
                        WHERE id IN (SELECT id FROM gone WHERE is_given_id))
                    SELECT count(*) FROM gone',
                    part.name
                ) INTO gone USING utc::date, most - total;
            END IF;
        END IF;
        total := total + gone;
    END LOOP;
    RETURN total;
END
$$;
