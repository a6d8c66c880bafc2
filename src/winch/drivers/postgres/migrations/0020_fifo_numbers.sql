-- A member of a FIFO key has a number from one sequence: members run in the order of their numbers, not of time and
-- id, which jobs of one call share or draw at random. A sequence gives numbers outside of transactions, so no producer
-- waits for another. Members that are live now get theirs here; others of an older release come after the numbered ones.

CREATE SEQUENCE {schema}.job_seq AS bigint;

ALTER TABLE {schema}.job ADD COLUMN seq bigint;
ALTER TABLE {schema}.archive ADD COLUMN seq bigint;
UPDATE {schema}.job SET seq = {schema}.micros(created_at) WHERE fifo IS NOT NULL;

DROP INDEX {schema}.job_fifo;
CREATE INDEX job_fifo ON {schema}.job (fifo, seq, id) WHERE fifo IS NOT NULL;
COMMENT ON INDEX {schema}.job_fifo IS 'serves claim and admit: who is first of a FIFO key';

-- The next number. Numbers are at most an hour behind the clock, in µs: a sequence that was set back (tables copied
-- without it, as logical replication does) is brought forward, so that members stored from then on come last. One
-- producer does that at a time, under a lock of a moment that ends before its transaction; others look again.
CREATE FUNCTION {schema}.next_seq() RETURNS bigint
    LANGUAGE plpgsql
AS $$
DECLARE
    given bigint := nextval('{schema}.job_seq');
    clock bigint := {schema}.micros(clock_timestamp());
    behind CONSTANT bigint := 3600000000;
    own CONSTANT bigint := hashtextextended('{schema}.job_seq', 0);
BEGIN
    FOR look IN 1..100 LOOP
        EXIT WHEN given >= clock - behind;
        IF pg_try_advisory_lock(own) THEN
            IF (SELECT last_value FROM {schema}.job_seq) < clock - behind THEN
                PERFORM setval('{schema}.job_seq', clock);
            END IF;
            PERFORM pg_advisory_unlock(own);
        ELSE
            PERFORM pg_sleep(0.001);
        END IF;
        given := nextval('{schema}.job_seq');
    END LOOP;
    RETURN given;
END
$$;

CREATE OR REPLACE FUNCTION {schema}.open_gate(opened text, most integer) RETURNS integer
    LANGUAGE plpgsql
AS $$
DECLARE
    chosen uuid[];
    woken text[];
BEGIN
    IF starts_with(opened, 'fifo:') THEN
        IF EXISTS (SELECT FROM {schema}.permit WHERE gate = opened AND token IS NULL) THEN
            RETURN 0;
        END IF;
        chosen := ARRAY(
            SELECT id FROM {schema}.job WHERE fifo = substr(opened, 6) ORDER BY seq, id LIMIT 1
        );
        chosen := ARRAY(
            SELECT id
            FROM {schema}.job
            WHERE id = ANY (chosen) AND state = 'blocked' AND gate = opened
            FOR UPDATE SKIP LOCKED
        );
    ELSE
        chosen := ARRAY(
            SELECT id
            FROM {schema}.job
            WHERE filed = 'blocked' AND gate = opened
            ORDER BY gate, sort_key, id
            LIMIT most
            FOR UPDATE SKIP LOCKED
        );
    END IF;
    IF cardinality(chosen) = 0 THEN
        RETURN 0;
    END IF;
    WITH admitted AS (
        UPDATE {schema}.job SET state = 'ready', filed = 'ready', gate = '' WHERE id = ANY (chosen)
        RETURNING queue
    )
    SELECT array_agg(DISTINCT queue) INTO woken FROM admitted;
    PERFORM {schema}.ring(woken, false);
    RETURN cardinality(chosen);
END
$$;
