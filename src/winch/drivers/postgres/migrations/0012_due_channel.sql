-- Wake-ups for jobs that are due soon have a channel of their own: who waits for those need not hear of every
-- job that is ready. The common channel has them too, for workers of the release before this one.

CREATE OR REPLACE FUNCTION {schema}.ring(queues text[], is_due boolean) RETURNS boolean
    LANGUAGE plpgsql
AS $$
DECLARE
    payload text;
    has_due boolean;
BEGIN
    SELECT json_agg(queue.name)::text, bool_or(queue.name = '') INTO payload, has_due
    FROM {schema}.queue
    WHERE (queue.name = ANY (queues) OR (is_due AND queue.name = ''))
        AND queue.waiting_until > clock_timestamp();
    IF payload IS NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_notify(
        'winch_' || md5('{schema}'),
        CASE WHEN octet_length(payload) > 7900 THEN '[]' ELSE payload END
    );
    IF has_due THEN
        PERFORM pg_notify('winch_' || md5('{schema}') || '_due', '[""]');
    END IF;
    RETURN true;
END
$$;
