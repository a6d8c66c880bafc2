-- The triggers behind `events="full"`: one row in job_event for each change of a job, in the change's own
-- transaction. The driver names the verb and its moment in two settings that last until the transaction ends.
-- A driver that keeps no events sets neither, and the triggers do nothing.
-- The live row of a job that becomes final is deleted and its archive row inserted by one statement; the
-- triggers run after it and find the archive row.

CREATE OR REPLACE FUNCTION {schema}.witness_job() RETURNS trigger
    LANGUAGE plpgsql
AS $$
DECLARE
    verb text := current_setting('winch.verb');
    job_id uuid := coalesce(NEW.id, OLD.id);
    next_v bigint := 1 + coalesce((SELECT max(v) FROM {schema}.job_event WHERE job = job_id), 0);
    after record := NEW;
BEGIN
    IF TG_OP = 'DELETE' AND verb IN ('enqueue', 'enqueue_after') THEN -- an insert taken back: it never happened
        DELETE FROM {schema}.job_event WHERE job = job_id AND v = next_v - 1;
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' AND verb = 'delete' THEN
        SELECT NULL::text AS state, OLD.session, OLD.attempt, OLD.history, NULL::uuid AS ended_token INTO after;
    ELSIF TG_OP = 'DELETE' THEN
        SELECT state, session, attempt, history, ended_token INTO after FROM {schema}.archive WHERE id = job_id;
    END IF;
    IF verb = 'finish_and_claim' THEN
        verb := CASE WHEN TG_OP = 'UPDATE' AND NEW.state = 'running' THEN 'claim' ELSE 'finish' END;
    END IF;
    -- Stored under an offer, or the next member of a FIFO key, which is admitted and claimed: two changes in one row.
    IF NEW.state = 'running' AND (TG_OP = 'INSERT' OR OLD.state = 'blocked') THEN
        INSERT INTO {schema}.job_event (job, v, kind, state, attempt, at)
        VALUES (
            job_id, next_v, CASE TG_OP WHEN 'INSERT' THEN 'enqueued' ELSE 'admitted' END, 'ready', NEW.attempt - 1,
            coalesce(nullif(current_setting('winch.at', true), '')::timestamptz, clock_timestamp())
        );
        next_v := next_v + 1;
        verb := 'claim';
    END IF;
    INSERT INTO {schema}.job_event (job, v, kind, state, token, by_token, session, attempt, at)
    VALUES (
        job_id,
        next_v,
        CASE
            WHEN TG_OP = 'UPDATE' AND OLD.state = 'ready' AND NEW.state = 'blocked' THEN 'held'
            WHEN TG_OP = 'UPDATE' AND OLD.state = 'blocked' AND NEW.state = 'ready' AND verb <> 'enqueue' THEN 'admitted'
            ELSE CASE verb
            WHEN 'enqueue' THEN CASE TG_OP WHEN 'UPDATE' THEN 'replaced' ELSE 'enqueued' END
            WHEN 'enqueue_after' THEN CASE TG_OP WHEN 'UPDATE' THEN 'held' ELSE 'enqueued' END
            WHEN 'claim' THEN 'claimed'
            WHEN 'finish' THEN 'finished'
            WHEN 'release' THEN 'released'
            WHEN 'give_up' THEN 'released'
            WHEN 'rescue' THEN 'rescued'
            WHEN 'crash' THEN 'rescued'
            WHEN 'promote' THEN 'promoted'
            WHEN 'cancel' THEN 'cancelled'
            WHEN 'retry' THEN 'retried'
            WHEN 'delete' THEN 'deleted'
            WHEN 'end_session' THEN CASE -- what a dead process had started is written down; the rest was held
                WHEN after.history IS DISTINCT FROM OLD.history AND after.history -> -1 ->> 'what' = 'crashed'
                THEN 'rescued'
                ELSE 'released'
            END
            END
        END,
        after.state,
        CASE WHEN verb = 'claim' AND NEW.state = 'running' THEN NEW.token ELSE OLD.token END,
        -- What the writer presented, not what the row had: a check of the fence must be able to fail.
        CASE
            WHEN OLD.state <> 'running' THEN NULL
            WHEN verb IN ('finish', 'release', 'crash') THEN after.ended_token
            WHEN verb = 'give_up' THEN OLD.token
        END,
        after.session,
        after.attempt,
        coalesce(nullif(current_setting('winch.at', true), '')::timestamptz, clock_timestamp())
    );
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION {schema}.witness_archive() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO {schema}.job_event (job, v, kind, session, attempt, at)
    SELECT
        OLD.id,
        1 + coalesce(max(v), 0),
        'deleted',
        OLD.session,
        OLD.attempt,
        coalesce(nullif(current_setting('winch.at', true), '')::timestamptz, clock_timestamp())
    FROM {schema}.job_event
    WHERE job = OLD.id;
    RETURN NULL;
END
$$;

CREATE TRIGGER job_event_insert AFTER INSERT ON {schema}.job
    FOR EACH ROW WHEN (current_setting('winch.verb', true) <> '')
    EXECUTE FUNCTION {schema}.witness_job();

CREATE TRIGGER job_event_update AFTER UPDATE ON {schema}.job
    FOR EACH ROW WHEN (OLD.state <> NEW.state AND current_setting('winch.verb', true) <> '')
    EXECUTE FUNCTION {schema}.witness_job();

CREATE TRIGGER job_event_delete AFTER DELETE ON {schema}.job
    FOR EACH ROW WHEN (current_setting('winch.verb', true) <> '')
    EXECUTE FUNCTION {schema}.witness_job();

CREATE TRIGGER archive_event_delete AFTER DELETE ON {schema}.archive
    FOR EACH ROW WHEN (current_setting('winch.verb', true) = 'delete')
    EXECUTE FUNCTION {schema}.witness_archive();
