-- Jobs that are waited for together are told about once for each transaction, not one by one: the key says what their
-- ids begin with, and whether one of them is live is looked at in the index of live jobs. What this transaction has
-- told is a setting of its own, which a rollback takes back with the row; a row that another has written says
-- nothing, because whoever takes it up may have looked before this one commits.
CREATE OR REPLACE FUNCTION {schema}.tell_waiting() RETURNS trigger
    LANGUAGE plpgsql
AS $$
DECLARE
    place integer := strpos(OLD.headers, '"winch-awaited":"all:');
    together text;
BEGIN
    IF place > 0 THEN
        together := substr(OLD.headers, place + 17, 34);
        IF current_setting('winch.told', true) IS DISTINCT FROM together THEN
            INSERT INTO {schema}.recheck (key) VALUES (together);
            PERFORM {schema}.ring(NULL, true);
            PERFORM set_config('winch.told', together, true);
        END IF;
        IF strpos(OLD.headers, '+job"') = 0 THEN
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO {schema}.recheck (key) VALUES ('job:' || OLD.id);
    PERFORM {schema}.ring(NULL, true);
    RETURN NULL;
END
$$;
