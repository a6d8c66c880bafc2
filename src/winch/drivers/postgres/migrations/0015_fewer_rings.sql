-- The end of a job that is waited for together with others wakes who looks at that only where it may be the last: while
-- one of the others is not even claimed, all looks are in vain. The key is written down at every end, as before. Of
-- several that end at once the one that looks last finds none unclaimed, and rings.
CREATE FUNCTION {schema}.is_unclaimed_left(together text) RETURNS boolean
    LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF together !~ '^all:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{6}$' THEN
        RETURN false;
    END IF;
    -- The one with the last id: they are claimed in the order of their ids.
    RETURN coalesce((
        SELECT job.state = 'ready'
        FROM {schema}.job
        WHERE job.id BETWEEN (substr(together, 5) || '000000')::uuid AND (substr(together, 5) || 'ffffff')::uuid
        ORDER BY job.id DESC
        LIMIT 1
    ), false);
END
$$;

-- As before, and told from the headers as a whole: jobs that are waited for together mostly have the same, and to take
-- the key out of each cost half of this function. What this transaction has told is a setting of its own, which a
-- rollback takes back with the row; a row that another has written says nothing, because whoever takes it up may have
-- looked before this one commits.
CREATE OR REPLACE FUNCTION {schema}.tell_waiting() RETURNS trigger
    LANGUAGE plpgsql
AS $$
DECLARE
    place integer;
    together text;
BEGIN
    IF current_setting('winch.told', true) = OLD.headers THEN
        RETURN NULL;
    END IF;
    place := strpos(OLD.headers, '"winch-awaited":"all:');
    IF place > 0 THEN
        together := substr(OLD.headers, place + 17, 34);
        INSERT INTO {schema}.recheck (key) VALUES (together);
        IF NOT {schema}.is_unclaimed_left(together) THEN
            PERFORM {schema}.ring(NULL, true);
        END IF;
        IF strpos(OLD.headers, '+job"') = 0 THEN
            PERFORM set_config('winch.told', OLD.headers, true);
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO {schema}.recheck (key) VALUES ('job:' || OLD.id);
    PERFORM {schema}.ring(NULL, true);
    RETURN NULL;
END
$$;
