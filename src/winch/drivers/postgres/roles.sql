-- Four roles for the schema {schema}, each with what its part needs and no more. Safe to run again; do so
-- after every `winch migrate`, because new tables need new grants. They cannot log in themselves: grant them to
-- the accounts of your services (GRANT {producer} TO shop_web).

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['{producer}', '{worker}', '{reader}', '{migrator}'] LOOP
        IF to_regrole(name) IS NULL THEN
            EXECUTE format('CREATE ROLE %s NOLOGIN', name);
        END IF;
    END LOOP;
    -- Not IF NOT EXISTS: that asks for the right to create schemas even where this one is there.
    IF to_regnamespace('{schema}') IS NULL THEN
        EXECUTE 'CREATE SCHEMA {schema} AUTHORIZATION {migrator}';
    END IF;
END
$$;
-- grants

GRANT USAGE ON SCHEMA {schema} TO {producer}, {worker}, {reader};
GRANT SELECT ON {schema}.winch_migration TO {producer}, {worker}, {reader};

-- They run with the rights of their owner, and remove final jobs.
REVOKE EXECUTE ON FUNCTION {schema}.make_partitions, {schema}.prune_archive FROM PUBLIC;

-- Producer: stores jobs. Of other jobs it sees only ids, queues, states and run times: no arguments, no
-- results, no claims. `ring` reads whether a worker waits.
GRANT INSERT ON {schema}.job, {schema}.given_id TO {producer};
GRANT SELECT, INSERT, DELETE ON {schema}.unique_key TO {producer};
GRANT SELECT, INSERT, UPDATE ON {schema}.unique_kept TO {producer};
GRANT SELECT (id, queue, state, run_at) ON {schema}.job TO {producer};
GRANT SELECT (id) ON {schema}.given_id, {schema}.archive TO {producer};
GRANT SELECT (name, waiting_until) ON {schema}.queue TO {producer};
GRANT SELECT, UPDATE ON SEQUENCE {schema}.job_seq TO {producer}, {worker};
GRANT SELECT, INSERT ON {schema}.job_event TO {producer};
-- It may send signals. Flows, whose members wait for each other, are stored by a worker's account.
GRANT INSERT ON {schema}.signal, {schema}.recheck TO {producer};
GRANT SELECT (name) ON {schema}.signal TO {producer};

-- Worker, and operators: all rows; it creates, alters and drops nothing.
GRANT SELECT, INSERT, UPDATE, DELETE
    ON {schema}.job, {schema}.archive, {schema}.given_id, {schema}.session, {schema}.queue, {schema}.job_event,
        {schema}.unique_key, {schema}.schedule, {schema}.schedule_run, {schema}.declaration, {schema}.book_line,
        {schema}.gate, {schema}.permit, {schema}.limit_set, {schema}.unique_kept,
        {schema}.signal, {schema}.waiting, {schema}.recheck, {schema}.lease, {schema}.offer
    TO {worker};
GRANT SELECT ON {schema}.schedule_in_effect, {schema}.backlog, {schema}.backlog_by_label, {schema}.claimed TO {worker};
GRANT EXECUTE ON FUNCTION {schema}.make_partitions, {schema}.prune_archive TO {worker};

-- Reader: the command line and the dashboard as long as they only look.
GRANT SELECT
    ON {schema}.job, {schema}.archive, {schema}.session, {schema}.queue, {schema}.job_event, {schema}.schedule,
        {schema}.schedule_run, {schema}.declaration, {schema}.schedule_in_effect, {schema}.book_line,
        {schema}.gate, {schema}.permit, {schema}.limit_set,
        {schema}.waiting, {schema}.backlog, {schema}.backlog_by_label, {schema}.lease, {schema}.claimed
    TO {reader};
