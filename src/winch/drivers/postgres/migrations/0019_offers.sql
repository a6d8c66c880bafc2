-- Offers: claims that wait in the store. A worker that found nothing leaves one, and who stores a plain job while it
-- stands hands the job over in the same write: claimed under the offer's token, and told on the worker's own channel.
-- The worker is spared a claim and the disk a commit. docs/protocol.md has what a lost word means.
--
-- UNLOGGED, because an offer is nothing but a chance: after a crash there are none. Whose worker is gone ends by its
-- time, or because its session has ended.
CREATE UNLOGGED TABLE {schema}.offer (
    token uuid NOT NULL,
    session uuid NOT NULL,
    queue text NOT NULL,
    tasks text[],
    channel text NOT NULL,
    until timestamptz NOT NULL,
    PRIMARY KEY (token, queue)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
-- By time, too: while a snapshot is held, those that are gone pile up, and only the last seconds of them are met.
CREATE INDEX offer_standing ON {schema}.offer (queue, until);
COMMENT ON INDEX {schema}.offer_standing IS 'serves hand_over';

-- Stores a plain job as claimed under an offer; false, and it has rung for the queue instead, where none stands.
-- Locks: an offer, and its session FOR KEY SHARE, past offers that others have and sessions that somebody is about to
-- end. Waits for nobody. With the rights of its owner: who stores jobs need not see who works.
CREATE FUNCTION {schema}.hand_over(
    job_id uuid, job_queue text, job_task text, job_version integer, job_priority integer, job_args text,
    job_max_attempts integer
) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    at timestamptz := clock_timestamp();
    number bigint := {schema}.micros(at);
    taken {schema}.offer;
    word text;
BEGIN
    DELETE FROM {schema}.offer
    WHERE ctid = (
        SELECT offer.ctid
        FROM {schema}.offer
        JOIN {schema}.session ON session.id = offer.session AND session.ended_at IS NULL
        WHERE offer.queue = job_queue
            AND offer.until > at
            AND (offer.tasks IS NULL OR job_task = ANY (offer.tasks))
            AND EXISTS (SELECT FROM {schema}.queue WHERE name = job_queue AND paused_at IS NULL)
        ORDER BY offer.queue DESC, offer.until DESC
        LIMIT 1
        FOR UPDATE OF offer SKIP LOCKED
        FOR KEY SHARE OF session SKIP LOCKED
    )
    RETURNING * INTO taken;
    IF NOT FOUND THEN
        PERFORM pg_notify('winch_' || md5('{schema}'), json_build_array(job_queue)::text);
        RETURN false;
    END IF;
    IF coalesce(current_setting('winch.verb', true), '') <> '' THEN
        -- Events are kept, one for each change: it is stored, and then claimed.
        INSERT INTO {schema}.job (
            id, created_at, run_at, sort_key, version, priority, state, queue, task, args, max_attempts
        )
        VALUES (
            job_id, at, at, {schema}.sort_key(at, job_priority), job_version, job_priority, 'ready', job_queue,
            job_task, job_args, job_max_attempts
        );
        PERFORM set_config('winch.verb', 'claim', true);
        UPDATE {schema}.job
        SET state = 'running',
            filed = 'running',
            attempt = 1,
            fence = number,
            token = taken.token,
            session = taken.session,
            claimed_at = at
        WHERE id = job_id;
    ELSE
        INSERT INTO {schema}.job (
            id, created_at, run_at, sort_key, version, priority, state, filed, queue, task, args, max_attempts, attempt,
            fence, token, session, claimed_at
        )
        VALUES (
            job_id, at, at, {schema}.sort_key(at, job_priority), job_version, job_priority, 'running', 'running',
            job_queue, job_task, job_args, job_max_attempts, 1, number, taken.token, taken.session, at
        );
    END IF;
    word := json_build_array(taken.token, job_id, job_queue, job_task, job_args, job_version, number)::text;
    -- A word has room for 8,000 bytes. The worker looks for what it is not told.
    PERFORM pg_notify(
        taken.channel,
        CASE WHEN octet_length(word) > 7900 THEN json_build_array(taken.token)::text ELSE word END
    );
    RETURN true;
END
$$;
