-- The triggers behind `events="full"`: one row in job_event for each change of a job, in the change's own
-- transaction, whichever process makes it. What happened is read off the rows, so that verbs pay nothing
-- when this is off and cannot forget it when it is on. A move to the archive inserts there first and
-- deletes the live row after; a move back inserts the live row first.

CREATE TRIGGER winch_job_event_insert AFTER INSERT ON winch_job
BEGIN
    -- Only a job that comes back from the archive has a history.
    INSERT INTO winch_job_event (job, v, kind, state, token, by_token, session, attempt, at)
    VALUES (
        NEW.id,
        1 + coalesce((SELECT max(v) FROM winch_job_event WHERE job = NEW.id), 0),
        CASE WHEN NEW.history = '[]' THEN 'enqueued' ELSE 'retried' END,
        NEW.state, NULL, NULL, NEW.session, NEW.attempt, NEW.changed_at
    );
END;

CREATE TRIGGER winch_job_event_update AFTER UPDATE OF state ON winch_job WHEN OLD.state <> NEW.state
BEGIN
    -- The holder's own finish or release notes its token in the job; a finish grows the history, a
    -- release only where the handler had begun. Of what others take back, only rescue grows it. give_up
    -- presents the token; end_session does not, and has ended the session before. A crash is a rescue that
    -- presents it.
    INSERT INTO winch_job_event (job, v, kind, state, token, by_token, session, attempt, at)
    SELECT
        NEW.id,
        1 + coalesce((SELECT max(v) FROM winch_job_event WHERE job = NEW.id), 0),
        change.kind,
        NEW.state,
        CASE change.kind WHEN 'claimed' THEN NEW.token ELSE OLD.token END,
        CASE
            WHEN change.kind = 'finished' THEN OLD.token
            WHEN change.kind = 'rescued' AND NEW.ended_token IS OLD.token THEN OLD.token
            WHEN change.kind = 'released' AND (NEW.ended_token IS OLD.token OR EXISTS (
                SELECT 1 FROM winch_session WHERE id = OLD.session AND ended_at IS NULL
            )) THEN OLD.token
        END,
        NEW.session, NEW.attempt, NEW.changed_at
    FROM (
        SELECT CASE
            WHEN NEW.state = 'running' THEN 'claimed'
            WHEN NEW.state = 'blocked' AND OLD.state <> 'running' THEN 'held'
            WHEN NEW.state = 'ready' AND OLD.state = 'blocked' AND NEW.history = OLD.history THEN 'admitted'
            WHEN OLD.state <> 'running' AND NEW.history <> OLD.history THEN CASE
                WHEN json_extract(NEW.history, '$[#-1].what') = 'replaced' THEN 'replaced'
                WHEN json_extract(NEW.history, '$[#-1].what') = 'cancel requested' THEN 'cancelled'
                ELSE 'retried'
            END
            WHEN OLD.state <> 'running' THEN 'promoted'
            WHEN NEW.history = OLD.history THEN 'released'
            WHEN json_extract(NEW.history, '$[#-1].what') = 'released' THEN 'released'
            WHEN json_extract(NEW.history, '$[#-1].what') IN ('crashed', 'rescued') THEN 'rescued'
            ELSE 'finished'
        END AS kind
    ) AS change;
END;

CREATE TRIGGER winch_job_event_archive AFTER INSERT ON winch_archive
BEGIN
    -- The live row is still there. A release hands the attempt back, a finish to a final state does not.
    -- Jobs that others take back differ by the entry that each verb leaves in the history.
    INSERT INTO winch_job_event (job, v, kind, state, token, by_token, session, attempt, at)
    SELECT
        NEW.id,
        1 + coalesce((SELECT max(v) FROM winch_job_event WHERE job = NEW.id), 0),
        change.kind,
        NEW.state,
        change.token,
        CASE
            WHEN change.kind = 'finished' THEN change.token
            WHEN change.kind = 'rescued' AND NEW.ended_token IS change.token THEN change.token
            WHEN change.kind = 'released' AND (NEW.ended_token IS change.token OR EXISTS (
                SELECT 1 FROM winch_session WHERE id = NEW.session AND ended_at IS NULL
            )) THEN change.token
        END,
        NEW.session, NEW.attempt, NEW.finished_at
    FROM (
        SELECT token, CASE
            WHEN state <> 'running' THEN 'cancelled'
            WHEN NEW.attempt = attempt THEN 'finished'
            WHEN json_extract(NEW.history, '$[#-1].what') IN ('crashed', 'rescued') THEN 'rescued'
            ELSE 'released'
        END AS kind
        FROM winch_job
        WHERE id = NEW.id
    ) AS change;
END;

CREATE TRIGGER winch_job_event_delete AFTER DELETE ON winch_job WHEN OLD.deleted_at IS NOT NULL
BEGIN
    INSERT INTO winch_job_event (job, v, kind, state, token, by_token, session, attempt, at)
    VALUES (
        OLD.id,
        1 + coalesce((SELECT max(v) FROM winch_job_event WHERE job = OLD.id), 0),
        'deleted', NULL, NULL, NULL, OLD.session, OLD.attempt, OLD.deleted_at
    );
END;

CREATE TRIGGER winch_job_event_delete_kept AFTER DELETE ON winch_archive WHEN OLD.deleted_at IS NOT NULL
BEGIN
    INSERT INTO winch_job_event (job, v, kind, state, token, by_token, session, attempt, at)
    VALUES (
        OLD.id,
        1 + coalesce((SELECT max(v) FROM winch_job_event WHERE job = OLD.id), 0),
        'deleted', NULL, NULL, NULL, OLD.session, OLD.attempt, OLD.deleted_at
    );
END;
