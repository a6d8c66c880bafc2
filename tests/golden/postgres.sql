table archive: RANGE (drop_on)
table archive_default:
table book_line:
table declaration:
table gate: fillfactor=50, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=500, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off
table given_id:
table job: autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_insert_scale_factor=0.2, autovacuum_analyze_scale_factor=0.05, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off, fillfactor=45
table job_event:
table lease: fillfactor=50, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off
table limit_set:
table offer: autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=200, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off
table permit: autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=500, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off
table queue: fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=200, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off
table recheck: autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off
table schedule: fillfactor=50, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=200, vacuum_truncate=off
table schedule_run:
table session: fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=200, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off
table signal:
table unique_kept:
table unique_key: autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off
table waiting: autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0, vacuum_truncate=off
table winch_migration:
column winch.archive.01 id: uuid not null
column winch.archive.02 created_at: timestamp with time zone not null
column winch.archive.03 run_at: timestamp with time zone not null
column winch.archive.04 finished_at: timestamp with time zone not null
column winch.archive.05 fence: bigint not null
column winch.archive.06 version: integer not null
column winch.archive.07 priority: integer not null
column winch.archive.08 attempt: integer not null
column winch.archive.09 crashes: integer not null
column winch.archive.10 rescues: integer not null
column winch.archive.11 drop_on: date not null
column winch.archive.12 is_suspect: boolean not null
column winch.archive.13 is_given_id: boolean not null
column winch.archive.14 state: text not null
column winch.archive.15 queue: text not null
column winch.archive.16 task: text not null
column winch.archive.17 args: text not null
column winch.archive.18 session: uuid
column winch.archive.19 ended_token: uuid
column winch.archive.20 claimed_at: timestamp with time zone
column winch.archive.21 expires_at: timestamp with time zone
column winch.archive.22 cancel_requested_at: timestamp with time zone
column winch.archive.23 keep_seconds: double precision
column winch.archive.24 max_attempts: integer
column winch.archive.25 tenant: text
column winch.archive.26 fifo: text
column winch.archive.27 unique_key: text
column winch.archive.28 tags: text[]
column winch.archive.29 headers: text
column winch.archive.30 options: text
column winch.archive.31 progress: text
column winch.archive.32 checkpoint: text
column winch.archive.33 log: text
column winch.archive.34 history: jsonb
column winch.archive.35 result: text
column winch.archive.36 reason: text
column winch.archive.37 fingerprint: text
column winch.archive.38 has_undo: boolean
column winch.archive.39 seq: bigint
column winch.archive_default.01 id: uuid not null
column winch.archive_default.02 created_at: timestamp with time zone not null
column winch.archive_default.03 run_at: timestamp with time zone not null
column winch.archive_default.04 finished_at: timestamp with time zone not null
column winch.archive_default.05 fence: bigint not null
column winch.archive_default.06 version: integer not null
column winch.archive_default.07 priority: integer not null
column winch.archive_default.08 attempt: integer not null
column winch.archive_default.09 crashes: integer not null
column winch.archive_default.10 rescues: integer not null
column winch.archive_default.11 drop_on: date not null
column winch.archive_default.12 is_suspect: boolean not null
column winch.archive_default.13 is_given_id: boolean not null
column winch.archive_default.14 state: text not null
column winch.archive_default.15 queue: text not null
column winch.archive_default.16 task: text not null
column winch.archive_default.17 args: text not null
column winch.archive_default.18 session: uuid
column winch.archive_default.19 ended_token: uuid
column winch.archive_default.20 claimed_at: timestamp with time zone
column winch.archive_default.21 expires_at: timestamp with time zone
column winch.archive_default.22 cancel_requested_at: timestamp with time zone
column winch.archive_default.23 keep_seconds: double precision
column winch.archive_default.24 max_attempts: integer
column winch.archive_default.25 tenant: text
column winch.archive_default.26 fifo: text
column winch.archive_default.27 unique_key: text
column winch.archive_default.28 tags: text[]
column winch.archive_default.29 headers: text
column winch.archive_default.30 options: text
column winch.archive_default.31 progress: text
column winch.archive_default.32 checkpoint: text
column winch.archive_default.33 log: text
column winch.archive_default.34 history: jsonb
column winch.archive_default.35 result: text
column winch.archive_default.36 reason: text
column winch.archive_default.37 fingerprint: text
column winch.archive_default.38 has_undo: boolean
column winch.archive_default.39 seq: bigint
column winch.book_line.01 book: text not null
column winch.book_line.02 key: text not null
column winch.book_line.03 body: text not null
column winch.book_line.04 drop_at: timestamp with time zone
column winch.declaration.01 session: uuid not null
column winch.declaration.02 schedule: text not null
column winch.declaration.03 definition: text not null
column winch.declaration.04 timing: text not null
column winch.gate.01 key: text not null
column winch.gate.02 state: text
column winch.gate.03 open_at: timestamp with time zone
column winch.given_id.01 id: uuid not null
column winch.job.01 id: uuid not null
column winch.job.02 created_at: timestamp with time zone not null
column winch.job.03 run_at: timestamp with time zone not null
column winch.job.04 sort_key: bigint not null
column winch.job.05 fence: bigint not null default 0
column winch.job.06 version: integer not null
column winch.job.07 priority: integer not null
column winch.job.08 attempt: integer not null default 0
column winch.job.09 crashes: integer not null default 0
column winch.job.10 rescues: integer not null default 0
column winch.job.11 is_suspect: boolean not null default false
column winch.job.12 is_given_id: boolean not null default false
column winch.job.13 state: text not null
column winch.job.14 queue: text not null
column winch.job.15 task: text not null
column winch.job.16 args: text not null
column winch.job.17 token: uuid
column winch.job.18 session: uuid
column winch.job.19 ended_token: uuid
column winch.job.20 claimed_at: timestamp with time zone
column winch.job.21 expires_at: timestamp with time zone
column winch.job.22 cancel_requested_at: timestamp with time zone
column winch.job.23 keep_seconds: double precision
column winch.job.24 max_attempts: integer
column winch.job.25 tenant: text
column winch.job.26 fifo: text
column winch.job.27 unique_key: text
column winch.job.28 tags: text[]
column winch.job.29 headers: text
column winch.job.30 options: text
column winch.job.31 progress: text
column winch.job.32 checkpoint: text
column winch.job.33 log: text
column winch.job.34 history: jsonb
column winch.job.35 reason: text
column winch.job.36 gate: text
column winch.job.37 has_undo: boolean
column winch.job.38 filed: text not null default 'ready'::text
column winch.job.39 seq: bigint
column winch.job_event.01 seq: bigint not null identity
column winch.job_event.02 job: uuid not null
column winch.job_event.03 v: bigint not null
column winch.job_event.04 kind: text not null
column winch.job_event.05 state: text
column winch.job_event.06 token: uuid
column winch.job_event.07 by_token: uuid
column winch.job_event.08 session: uuid
column winch.job_event.09 attempt: integer not null
column winch.job_event.10 at: timestamp with time zone not null
column winch.lease.01 token: uuid not null
column winch.lease.02 session: uuid not null
column winch.lease.03 claimed_at: timestamp with time zone not null
column winch.lease.04 unended: integer not null
column winch.lease.05 ids: uuid[] not null
column winch.limit_set.01 name: text not null
column winch.limit_set.02 spec: text not null
column winch.limit_set.03 is_live: boolean not null
column winch.limit_set.04 set_by: text not null
column winch.limit_set.05 set_at: timestamp with time zone not null
column winch.offer.01 token: uuid not null
column winch.offer.02 session: uuid not null
column winch.offer.03 queue: text not null
column winch.offer.04 tasks: text[]
column winch.offer.05 channel: text not null
column winch.offer.06 until: timestamp with time zone not null
column winch.permit.01 gate: text not null
column winch.permit.02 job: uuid not null
column winch.permit.03 token: uuid
column winch.permit.04 weight: integer not null
column winch.queue.01 name: text not null
column winch.queue.02 paused_at: timestamp with time zone
column winch.queue.03 pause_reason: text
column winch.queue.04 waiting_until: timestamp with time zone
column winch.queue.05 concurrency: integer
column winch.queue.06 is_strict: boolean not null default false
column winch.recheck.01 seq: bigint not null identity
column winch.recheck.02 key: text not null
column winch.schedule.01 name: text not null
column winch.schedule.02 definition: text not null
column winch.schedule.03 is_code: boolean not null
column winch.schedule.04 created_at: timestamp with time zone not null
column winch.schedule.05 last_window: timestamp with time zone not null
column winch.schedule.06 next_at: timestamp with time zone
column winch.schedule.07 timing: text
column winch.schedule.08 pending: timestamp with time zone
column winch.schedule.09 paused_at: timestamp with time zone
column winch.schedule.10 pause_reason: text
column winch.schedule_run.01 schedule: text not null
column winch.schedule_run.02 window_at: timestamp with time zone not null
column winch.schedule_run.03 kind: text not null
column winch.schedule_run.04 at: timestamp with time zone not null
column winch.schedule_run.05 job: uuid
column winch.schedule_run.06 note: text
column winch.session.01 id: uuid not null
column winch.session.02 worker: text not null
column winch.session.03 host: text not null
column winch.session.04 pid: integer not null
column winch.session.05 release: text not null
column winch.session.06 queues: text[] not null
column winch.session.07 tasks: text[] not null
column winch.session.08 slots: integer not null
column winch.session.09 lease_seconds: double precision not null
column winch.session.10 started_at: timestamp with time zone not null
column winch.session.11 lease_until: timestamp with time zone not null
column winch.session.12 beats: bigint not null default 0
column winch.session.13 ended_at: timestamp with time zone
column winch.session.14 end_reason: text
column winch.signal.01 name: text not null
column winch.signal.02 id: text not null
column winch.signal.03 payload: text not null
column winch.signal.04 sent_at: timestamp with time zone not null
column winch.signal.05 taken_by: uuid
column winch.signal.06 wanted_by: text
column winch.unique_kept.01 key: text not null
column winch.unique_kept.02 job: uuid not null
column winch.unique_kept.03 until: timestamp with time zone not null
column winch.unique_key.01 key: text not null
column winch.unique_key.02 job: uuid not null
column winch.waiting.01 job: uuid not null
column winch.waiting.02 key: text not null
column winch.waiting.03 is_enough: boolean not null
column winch.waiting.04 until: timestamp with time zone
column winch.winch_migration.01 number: integer not null
column winch.winch_migration.02 name: text not null
column winch.winch_migration.03 applied_at: timestamp with time zone not null default clock_timestamp()
constraint winch.archive.archive_result_is_of_completed: CHECK (((result IS NULL) OR (state = 'completed'::text)))
constraint winch.archive.archive_state_is_final: CHECK ((state = ANY (ARRAY['completed'::text, 'cancelled'::text, 'dead'::text])))
constraint winch.archive_default.archive_result_is_of_completed: CHECK (((result IS NULL) OR (state = 'completed'::text)))
constraint winch.archive_default.archive_state_is_final: CHECK ((state = ANY (ARRAY['completed'::text, 'cancelled'::text, 'dead'::text])))
constraint winch.book_line.book_line_pkey: PRIMARY KEY (book, key)
constraint winch.declaration.declaration_pkey: PRIMARY KEY (session, schedule)
constraint winch.declaration.declaration_session_fkey: FOREIGN KEY (session) REFERENCES winch.session(id) ON DELETE CASCADE
constraint winch.gate.gate_pkey: PRIMARY KEY (key)
constraint winch.given_id.given_id_pkey: PRIMARY KEY (id)
constraint winch.job.job_pkey: PRIMARY KEY (id)
constraint winch.job_event.job_event_pkey: PRIMARY KEY (seq)
constraint winch.lease.lease_pkey: PRIMARY KEY (token)
constraint winch.limit_set.limit_set_pkey: PRIMARY KEY (name)
constraint winch.offer.offer_pkey: PRIMARY KEY (token, queue)
constraint winch.permit.permit_pkey: PRIMARY KEY (gate, job)
constraint winch.queue.queue_pkey: PRIMARY KEY (name)
constraint winch.recheck.recheck_pkey: PRIMARY KEY (seq)
constraint winch.schedule.schedule_pkey: PRIMARY KEY (name)
constraint winch.schedule_run.schedule_run_pkey: PRIMARY KEY (schedule, window_at)
constraint winch.session.session_end_has_reason: CHECK (((ended_at IS NULL) = (end_reason IS NULL)))
constraint winch.session.session_pkey: PRIMARY KEY (id)
constraint winch.signal.signal_pkey: PRIMARY KEY (name, id)
constraint winch.signal.signal_taken_for_something: CHECK (((taken_by IS NULL) = (wanted_by IS NULL)))
constraint winch.unique_kept.unique_kept_pkey: PRIMARY KEY (key)
constraint winch.unique_key.unique_key_pkey: PRIMARY KEY (key)
constraint winch.waiting.waiting_pkey: PRIMARY KEY (job, key)
constraint winch.winch_migration.winch_migration_pkey: PRIMARY KEY (number)
index winch.archive_alike: CREATE INDEX archive_alike ON ONLY winch.archive USING btree (fingerprint, id) INCLUDE (task, queue, finished_at) WHERE (fingerprint IS NOT NULL) -- serves groups and the list of one group
index winch.archive_dead: CREATE INDEX archive_dead ON ONLY winch.archive USING btree (task, finished_at, id) WHERE (state = 'dead'::text) -- serves trim
index winch.archive_default_drop_on: CREATE INDEX archive_default_drop_on ON winch.archive_default USING btree (drop_on) -- serves prune
index winch.archive_default_fingerprint_id_task_queue_finished_at_idx: CREATE INDEX archive_default_fingerprint_id_task_queue_finished_at_idx ON winch.archive_default USING btree (fingerprint, id) INCLUDE (task, queue, finished_at) WHERE (fingerprint IS NOT NULL)
index winch.archive_default_id_idx: CREATE INDEX archive_default_id_idx ON winch.archive_default USING btree (id)
index winch.archive_default_id_idx1: CREATE INDEX archive_default_id_idx1 ON winch.archive_default USING btree (id) WHERE is_given_id
index winch.archive_default_state_id_idx: CREATE INDEX archive_default_state_id_idx ON winch.archive_default USING btree (state, id) WHERE (state <> 'completed'::text)
index winch.archive_default_task_finished_at_id_idx: CREATE INDEX archive_default_task_finished_at_id_idx ON winch.archive_default USING btree (task, finished_at, id) WHERE (state = 'dead'::text)
index winch.archive_given_id: CREATE INDEX archive_given_id ON ONLY winch.archive USING btree (id) WHERE is_given_id -- serves prune, which frees the ids that callers gave
index winch.archive_id: CREATE INDEX archive_id ON ONLY winch.archive USING btree (id) -- serves get, list_jobs and the look-ups of finish
index winch.archive_unusual: CREATE INDEX archive_unusual ON ONLY winch.archive USING btree (state, id) WHERE (state <> 'completed'::text) -- serves list_jobs and counts: few among very many
index winch.book_line_drop: CREATE INDEX book_line_drop ON winch.book_line USING btree (drop_at) WHERE (drop_at IS NOT NULL) -- serves write_lines, which removes some of what is over
index winch.book_line_pkey: CREATE UNIQUE INDEX book_line_pkey ON winch.book_line USING btree (book, key)
index winch.declaration_of_schedule: CREATE INDEX declaration_of_schedule ON winch.declaration USING btree (schedule) -- serves schedules, due_schedules and change_schedule
index winch.declaration_pkey: CREATE UNIQUE INDEX declaration_pkey ON winch.declaration USING btree (session, schedule)
index winch.gate_due: CREATE INDEX gate_due ON winch.gate USING btree (open_at) WHERE (open_at IS NOT NULL) -- serves admit
index winch.gate_pkey: CREATE UNIQUE INDEX gate_pkey ON winch.gate USING btree (key)
index winch.given_id_pkey: CREATE UNIQUE INDEX given_id_pkey ON winch.given_id USING btree (id)
index winch.job_blocked: CREATE INDEX job_blocked ON winch.job USING btree (gate, sort_key, id) WHERE (filed = 'blocked'::text) -- serves admit, explain and counts
index winch.job_cancel: CREATE INDEX job_cancel ON winch.job USING btree (cancel_requested_at) WHERE (cancel_requested_at IS NOT NULL) -- serves cancels
index winch.job_due: CREATE INDEX job_due ON winch.job USING btree (run_at, id) WHERE (filed = ANY (ARRAY['scheduled'::text, 'retrying'::text])) -- serves promote
index winch.job_event_of_job: CREATE UNIQUE INDEX job_event_of_job ON winch.job_event USING btree (job, v) -- serves the triggers: the number of a job's next change
index winch.job_event_pkey: CREATE UNIQUE INDEX job_event_pkey ON winch.job_event USING btree (seq)
index winch.job_fifo: CREATE INDEX job_fifo ON winch.job USING btree (fifo, seq, id) WHERE (fifo IS NOT NULL) -- serves claim and admit: who is first of a FIFO key
index winch.job_gated: CREATE INDEX job_gated ON winch.job USING btree (queue, sort_key, id) WHERE ((filed = 'ready'::text) AND (gate IS NOT NULL) AND (tenant IS NULL)) -- serves claim and explain of jobs with gates
index winch.job_pkey: CREATE UNIQUE INDEX job_pkey ON winch.job USING btree (id)
index winch.job_priority: CREATE INDEX job_priority ON winch.job USING btree (queue, priority, sort_key, id) WHERE ((filed = 'ready'::text) AND (priority <> 0)) -- serves claim of queues with strict order
index winch.job_ready: CREATE INDEX job_ready ON winch.job USING btree (queue, sort_key, id) WHERE ((filed = 'ready'::text) AND (gate IS NULL)) -- serves claim and explain; has what claims by the hundred run, too
index winch.job_running: CREATE INDEX job_running ON winch.job USING btree (id) WHERE (filed = 'running'::text) -- serves the view claimed
index winch.job_tenant: CREATE INDEX job_tenant ON winch.job USING btree (queue, tenant, sort_key, id) WHERE ((filed = 'ready'::text) AND (gate IS NOT NULL) AND (tenant IS NOT NULL)) -- serves claim and explain of jobs with tenants
index winch.lease_pkey: CREATE UNIQUE INDEX lease_pkey ON winch.lease USING btree (token)
index winch.lease_session: CREATE INDEX lease_session ON winch.lease USING btree (session) -- serves the view claimed
index winch.limit_set_pkey: CREATE UNIQUE INDEX limit_set_pkey ON winch.limit_set USING btree (name)
index winch.offer_pkey: CREATE UNIQUE INDEX offer_pkey ON winch.offer USING btree (token, queue)
index winch.offer_standing: CREATE INDEX offer_standing ON winch.offer USING btree (queue, until) -- serves hand_over
index winch.permit_of_job: CREATE INDEX permit_of_job ON winch.permit USING btree (job) -- serves whatever ends a claim
index winch.permit_pkey: CREATE UNIQUE INDEX permit_pkey ON winch.permit USING btree (gate, job)
index winch.queue_pkey: CREATE UNIQUE INDEX queue_pkey ON winch.queue USING btree (name)
index winch.recheck_pkey: CREATE UNIQUE INDEX recheck_pkey ON winch.recheck USING btree (seq)
index winch.schedule_next: CREATE INDEX schedule_next ON winch.schedule USING btree (next_at) WHERE (paused_at IS NULL) -- serves due_schedules
index winch.schedule_pending: CREATE INDEX schedule_pending ON winch.schedule USING btree (name) WHERE (pending IS NOT NULL) -- serves due_schedules
index winch.schedule_pkey: CREATE UNIQUE INDEX schedule_pkey ON winch.schedule USING btree (name)
index winch.schedule_run_pkey: CREATE UNIQUE INDEX schedule_run_pkey ON winch.schedule_run USING btree (schedule, window_at)
index winch.session_pkey: CREATE UNIQUE INDEX session_pkey ON winch.session USING btree (id)
index winch.signal_pkey: CREATE UNIQUE INDEX signal_pkey ON winch.signal USING btree (name, id)
index winch.signal_sent: CREATE INDEX signal_sent ON winch.signal USING btree (sent_at) -- serves prune
index winch.signal_taken: CREATE INDEX signal_taken ON winch.signal USING btree (taken_by, wanted_by) WHERE (taken_by IS NOT NULL) -- serves take_signal, for who has taken one before
index winch.signal_untaken: CREATE INDEX signal_untaken ON winch.signal USING btree (name, sent_at, id) WHERE (taken_by IS NULL) -- serves take_signal and unblock
index winch.unique_kept_pkey: CREATE UNIQUE INDEX unique_kept_pkey ON winch.unique_kept USING btree (key)
index winch.unique_kept_until: CREATE INDEX unique_kept_until ON winch.unique_kept USING btree (until) -- serves prune
index winch.unique_key_pkey: CREATE UNIQUE INDEX unique_key_pkey ON winch.unique_key USING btree (key)
index winch.waiting_key: CREATE INDEX waiting_key ON winch.waiting USING btree (key) -- serves unblock
index winch.waiting_pkey: CREATE UNIQUE INDEX waiting_pkey ON winch.waiting USING btree (job, key)
index winch.waiting_until: CREATE INDEX waiting_until ON winch.waiting USING btree (until) WHERE (until IS NOT NULL) -- serves unblock
index winch.winch_migration_pkey: CREATE UNIQUE INDEX winch_migration_pkey ON winch.winch_migration USING btree (number)
function winch.drop_on(text,double precision,timestamp with time zone): returns date immutable
function winch.entry(text,timestamp with time zone,integer,uuid,uuid,timestamp with time zone,jsonb,text): returns jsonb stable
function winch.fingerprint(text,text): returns text stable
function winch.finish_members(uuid[],uuid[],jsonb,text,uuid,uuid,text[],text[],bigint,timestamp with time zone): returns TABLE(took text[], claimed winch.job) 

#variable_conflict use_column
DECLARE
    at timestamptz;
    keys text[];
    ended text[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    PERFORM FROM "winch".session WHERE id = by_session AND ended_at IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        most := 0;
    END IF;
    PERFORM set_config('lock_timeout', '4s', true), set_config('winch.claims', 'on', true);
    PERFORM "winch".lock_gates(ARRAY(
        SELECT gate::text FROM "winch".permit WHERE job = ANY (ids)
        UNION
        SELECT 'fifo:' || fifo FROM "winch".job WHERE id = ANY (ids) AND fifo IS NOT NULL
    ));
    at := coalesce(given, clock_timestamp());
    -- Whose claim is live under the gate's lock: it can end only here. A key whose member does not end keeps its turn.
    keys := ARRAY(
        SELECT DISTINCT job.fifo
        FROM unnest(ids, tokens) AS outcome (job, by_token)
        JOIN "winch".job AS job ON job.id = outcome.job AND job.token = outcome.by_token
        WHERE job.fifo IS NOT NULL
    );
    WITH gone AS (
        DELETE FROM "winch".job
        WHERE id = ANY (ids)
            AND (id, token) IN (SELECT outcome.job, outcome.by_token FROM unnest(ids, tokens) AS outcome (job, by_token))
        RETURNING
            id, created_at, run_at, fence, version, priority, attempt, crashes, rescues, is_suspect,
            is_given_id, queue, task, args, session, token, claimed_at, expires_at, cancel_requested_at,
            keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options, progress, checkpoint,
            log, history
    ),
    kept AS (
        INSERT INTO "winch".archive (
            id, created_at, run_at, finished_at, fence, version, priority, attempt, crashes, rescues, drop_on,
            is_suspect, is_given_id, state, queue, task, args, session, ended_token, claimed_at, expires_at,
            cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
            progress, checkpoint, log, history, result, reason
        )
        SELECT
            id, created_at, run_at, at, fence, version, priority, attempt, crashes, rescues,
            "winch".drop_on('completed', keep_seconds, at), is_suspect, is_given_id, 'completed', queue, task, args,
            session, token, claimed_at, expires_at, cancel_requested_at, keep_seconds, max_attempts, tenant, fifo,
            seq, unique_key, tags, headers, options, progress, checkpoint, log, history,
            CASE WHEN results IS NULL THEN finish_members.result ELSE results ->> id::text END, NULL
        FROM gone
    )
    SELECT coalesce(array_agg(id::text), '{}') INTO ended FROM gone;
    RETURN QUERY SELECT ended, NULL::"winch".job;
    RETURN QUERY SELECT NULL::text[], next FROM "winch".next_members(keys, by_session, by_token, served, known, most, at) AS next;
END
function winch.free_key(): returns trigger 

BEGIN
    DELETE FROM "winch".unique_key WHERE key = OLD.unique_key AND job = OLD.id;
    RETURN NULL;
END
function winch.grown(jsonb,jsonb): returns jsonb immutable
function winch.hand_over(): returns trigger security definer search_path=pg_catalog, pg_temp 

DECLARE
    taken "winch".offer;
    word text;
BEGIN
    NEW.fence := 0;
    DELETE FROM "winch".offer
    WHERE ctid = (
        SELECT offer.ctid
        FROM "winch".offer
        JOIN "winch".session ON session.id = offer.session AND session.ended_at IS NULL
        WHERE offer.queue = NEW.queue
            AND offer.until > clock_timestamp()
            AND (offer.tasks IS NULL OR NEW.task = ANY (offer.tasks))
            AND NEW.state = 'ready'
            AND NEW.gate IS NULL
            AND EXISTS (
                SELECT
                FROM "winch".queue
                WHERE name = NEW.queue AND paused_at IS NULL AND concurrency IS NULL AND NOT is_strict
            )
        ORDER BY offer.queue DESC, offer.until DESC
        LIMIT 1
        FOR UPDATE OF offer SKIP LOCKED
        FOR KEY SHARE OF session SKIP LOCKED
    )
    RETURNING * INTO taken;
    IF taken.token IS NULL THEN
        PERFORM pg_notify('winch_' || md5('"winch"'), json_build_array(NEW.queue)::text);
        RETURN NEW;
    END IF;
    NEW.state := 'running';
    NEW.filed := 'running';
    NEW.attempt := 1;
    NEW.fence := "winch".micros(NEW.created_at);
    NEW.token := taken.token;
    NEW.session := taken.session;
    NEW.claimed_at := NEW.created_at;
    word := json_build_array(
        taken.token, NEW.id, NEW.queue, NEW.task, NEW.args, NEW.version, NEW.fence
    )::text;
    -- A notification has room for 8,000 bytes. The worker looks up what it does not receive.
    PERFORM pg_notify(
        taken.channel,
        CASE WHEN octet_length(word) > 7900 THEN json_build_array(taken.token)::text ELSE word END
    );
    RETURN NEW;
END
function winch.is_possible(winch.job): returns boolean immutable
function winch.is_unclaimed_left(text): returns boolean stable 

BEGIN
    IF together !~ '^all:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{6}$' THEN
        RETURN false;
    END IF;
    -- The one with the last id: they are claimed in the order of their ids.
    RETURN coalesce((
        SELECT job.state = 'ready'
        FROM "winch".job
        WHERE job.id BETWEEN (substr(together, 5) || '000000')::uuid AND (substr(together, 5) || 'ffffff')::uuid
        ORDER BY job.id DESC
        LIMIT 1
    ), false);
END
function winch.keep_until(text,double precision,timestamp with time zone): returns timestamp without time zone immutable
function winch.leave_gates(): returns trigger 

DECLARE
    is_gone boolean := TG_OP = 'DELETE';
    keeps_turn boolean := false;
    held record;
    keys text[];
BEGIN
    keys := ARRAY(
        SELECT gate FROM "winch".permit WHERE job = OLD.id AND (is_gone OR token = OLD.token)
    );
    IF is_gone AND OLD.fifo IS NOT NULL THEN
        keys := keys || ('fifo:' || OLD.fifo);
        keeps_turn := position('"blocks_on_death":true' IN OLD.options) > 0
            AND EXISTS (SELECT FROM "winch".archive WHERE id = OLD.id AND state = 'dead');
    END IF;
    IF cardinality(keys) = 0 THEN
        RETURN NULL;
    END IF;
    PERFORM "winch".lock_gates(keys);
    FOR held IN
        DELETE FROM "winch".permit
        WHERE job = OLD.id
            AND (token = OLD.token OR (is_gone AND NOT (keeps_turn AND token IS NULL)))
        RETURNING gate, weight
    LOOP
        PERFORM "winch".open_gate(held.gate, greatest(held.weight, 1));
    END LOOP;
    IF is_gone AND OLD.fifo IS NOT NULL AND NOT keeps_turn THEN
        PERFORM "winch".open_gate('fifo:' || OLD.fifo, 1);
    END IF;
    RETURN NULL;
END
function winch.lock_gates(text[]): returns integer 

DECLARE
    wanted integer := (SELECT count(DISTINCT key) FROM unnest(keys) AS key);
    locked integer;
BEGIN
    -- A client that is stopped before it commits must not hold gates for long: the server ends its transaction.
    PERFORM set_config('idle_in_transaction_session_timeout', '2s', true);
    LOOP
        PERFORM FROM "winch".gate WHERE key = ANY (keys) ORDER BY key FOR UPDATE;
        GET DIAGNOSTICS locked = ROW_COUNT;
        EXIT WHEN locked >= wanted;
        INSERT INTO "winch".gate (key)
        SELECT DISTINCT key COLLATE "C" AS key FROM unnest(keys) AS key ORDER BY key
        ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN locked;
END
function winch.longer(text,text): returns text immutable
function winch.make_partitions(timestamp with time zone): returns integer security definer search_path=pg_catalog, pg_temp, lock_timeout=200ms 

DECLARE
    today date := (now AT TIME ZONE 'UTC')::date;
    day date;
    name text;
    made integer := 0;
BEGIN
    FOR day IN
        SELECT today + n FROM generate_series(1, 10) AS n
        UNION
        SELECT (date_trunc('month', today::timestamp) + make_interval(months => n))::date
        FROM generate_series(1, 25) AS n
        ORDER BY 1
    LOOP
        name := 'archive_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass(format('"winch".%I', name)) IS NOT NULL;
        -- Jobs of that day are in the net already: they stay there, and prune takes them one by one.
        CONTINUE WHEN EXISTS (SELECT FROM "winch".archive_default WHERE drop_on = day);
        EXECUTE format('CREATE TABLE "winch".%I (LIKE "winch".archive INCLUDING ALL)', name);
        EXECUTE format(
            'ALTER TABLE "winch".archive ATTACH PARTITION "winch".%I FOR VALUES FROM (%L) TO (%L)',
            name, day, day + 1
        );
        made := made + 1;
    END LOOP;
    RETURN made;
END
function winch.mark_gated(): returns trigger 

BEGIN
    IF NEW.filed <> NEW.state AND NOT "winch".is_possible(NEW) THEN
        RAISE EXCEPTION 'job % cannot be % as it is', NEW.id, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'job_is_possible', TABLE = 'job', SCHEMA = TG_TABLE_SCHEMA;
    END IF;
    IF left(NEW.options, 9) = '{"gates":' THEN
        NEW.gate := '';
    END IF;
    RETURN NEW;
END
function winch.micros(timestamp with time zone): returns bigint immutable
function winch.next_members(text[],uuid,uuid,text[],text[],bigint,timestamp with time zone): returns SETOF winch.job 

DECLARE
    heads uuid[];
    fit uuid[];
    chosen uuid[] := '{}';
    taken uuid[] := '{}';
    served_queue text;
    one uuid;
    woken text[];
BEGIN
    heads := ARRAY(
        SELECT member.id
        FROM unnest(keys) AS wanted (key)
        CROSS JOIN LATERAL (
            SELECT job.id, job.state
            FROM "winch".job
            WHERE job.fifo = wanted.key
            ORDER BY job.fifo, job.seq, job.id
            LIMIT 1
        ) AS member
        WHERE member.state = 'ready'
            AND NOT EXISTS (SELECT FROM "winch".permit WHERE permit.gate = 'fifo:' || wanted.key AND permit.token IS NULL)
    );
    IF cardinality(heads) = 0 THEN
        RETURN;
    END IF;
    -- One gate is one `kind`; text that was damaged by hand is not read as JSON.
    fit := ARRAY(
        SELECT job.id
        FROM "winch".job
        WHERE job.id = ANY (heads)
            AND job.tenant IS NULL
            AND length(job.options) - length(replace(job.options, '"kind":', '')) = length('"kind":')
    );
    most := least(most, cardinality(fit));
    <<queues>>
    FOREACH served_queue IN ARRAY served LOOP
        EXIT WHEN cardinality(chosen) >= most;
        CONTINUE WHEN EXISTS (
            SELECT FROM "winch".queue WHERE queue.name = served_queue AND queue.paused_at IS NOT NULL
        );
        -- A claim reads what is set for a queue. Whoever sets it waits for the session's lock.
        EXIT WHEN EXISTS (
            SELECT
            FROM "winch".queue
            WHERE queue.name = served_queue AND (queue.concurrency IS NOT NULL OR queue.is_strict)
        );
        -- Between tenants turns decide, not sort keys: a claim draws them.
        EXIT WHEN EXISTS (
            SELECT
            FROM "winch".job
            WHERE job.queue = served_queue AND job.filed = 'ready' AND job.gate IS NOT NULL AND job.tenant IS NOT NULL
        );
        FOR one IN
            SELECT first.id
            FROM (
                (
                    SELECT job.id, job.sort_key
                    FROM "winch".job
                    WHERE job.queue = served_queue
                        AND job.filed = 'ready'
                        AND job.gate IS NULL
                        AND job.state = 'ready'
                        AND (known IS NULL OR job.task = ANY (known))
                    ORDER BY job.queue, job.sort_key, job.id
                    LIMIT 1
                )
                UNION ALL
                (
                    SELECT job.id, job.sort_key
                    FROM "winch".job
                    WHERE job.queue = served_queue
                        AND job.filed = 'ready'
                        AND job.gate IS NOT NULL
                        AND job.tenant IS NULL
                        AND (known IS NULL OR job.task = ANY (known))
                    ORDER BY job.queue, job.sort_key, job.id
                    LIMIT most
                )
            ) AS first
            ORDER BY first.sort_key, first.id
        LOOP
            EXIT queues WHEN cardinality(chosen) >= most OR one <> ALL (fit);
            chosen := chosen || one;
        END LOOP;
    END LOOP;
    IF cardinality(chosen) > 0 THEN
        taken := ARRAY(
            SELECT job.id
            FROM "winch".job
            WHERE job.id = ANY (chosen) AND job.state = 'ready' AND job.gate IS NOT NULL
            ORDER BY job.id
            FOR UPDATE SKIP LOCKED
        );
        INSERT INTO "winch".permit (gate, job, token, weight)
        SELECT 'fifo:' || job.fifo, job.id, NULL, 0 FROM "winch".job WHERE job.id = ANY (taken)
        ON CONFLICT (gate, job) DO UPDATE SET token = excluded.token, weight = excluded.weight;
        RETURN QUERY
        UPDATE "winch".job
        SET state = 'running',
            filed = 'running',
            attempt = least(job.attempt, 2147483646) + 1, -- as claim does
            fence = greatest(job.fence + 1, "winch".micros(at)),
            token = by_token,
            session = by_session,
            claimed_at = at,
            progress = NULL,
            log = NULL
        WHERE job.id = ANY (taken)
        RETURNING job.*;
    END IF;
    SELECT array_agg(DISTINCT job.queue) INTO woken
    FROM "winch".job
    WHERE job.id = ANY (heads) AND job.id <> ALL (taken);
    IF woken IS NOT NULL THEN
        PERFORM "winch".ring(woken, false);
    END IF;
END
function winch.next_seq(): returns bigint 

DECLARE
    given bigint := nextval('"winch".job_seq');
    clock bigint := "winch".micros(clock_timestamp());
    behind CONSTANT bigint := 3600000000;
    own CONSTANT bigint := hashtextextended('"winch".job_seq', 0);
BEGIN
    FOR look IN 1..100 LOOP
        EXIT WHEN given >= clock - behind;
        IF pg_try_advisory_lock(own) THEN
            IF (SELECT last_value FROM "winch".job_seq) < clock - behind THEN
                PERFORM setval('"winch".job_seq', clock);
            END IF;
            PERFORM pg_advisory_unlock(own);
        ELSE
            PERFORM pg_sleep(0.001);
        END IF;
        given := nextval('"winch".job_seq');
    END LOOP;
    RETURN given;
END
function winch.note(text,timestamp with time zone,text,text): returns jsonb stable
function winch.open_gate(text,integer): returns integer 

DECLARE
    chosen uuid[];
    woken text[];
BEGIN
    IF starts_with(opened, 'queue:') THEN
        PERFORM "winch".ring(ARRAY[substr(opened, 7)], false);
        RETURN 0;
    END IF;
    IF starts_with(opened, 'fifo:') THEN
        IF EXISTS (SELECT FROM "winch".permit WHERE gate = opened AND token IS NULL) THEN
            RETURN 0;
        END IF;
        chosen := ARRAY(
            SELECT id FROM "winch".job WHERE fifo = substr(opened, 6) ORDER BY seq, id LIMIT 1
        );
        chosen := ARRAY(
            SELECT id
            FROM "winch".job
            WHERE id = ANY (chosen) AND state = 'blocked' AND gate = opened
            FOR UPDATE SKIP LOCKED
        );
    ELSE
        chosen := ARRAY(
            SELECT id
            FROM "winch".job
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
        UPDATE "winch".job SET state = 'ready', filed = 'ready', gate = '' WHERE id = ANY (chosen)
        RETURNING queue
    )
    SELECT array_agg(DISTINCT queue) INTO woken FROM admitted;
    -- A finish that claims wakes workers itself, for the members that it does not take.
    IF NOT starts_with(opened, 'fifo:') OR current_setting('winch.claims', true) IS DISTINCT FROM 'on' THEN
        PERFORM "winch".ring(woken, false);
    END IF;
    RETURN cardinality(chosen);
END
function winch.prune_archive(timestamp with time zone,integer): returns bigint security definer search_path=pg_catalog, pg_temp, lock_timeout=200ms 

DECLARE
    utc timestamp := now AT TIME ZONE 'UTC';
    part record;
    gone bigint;
    total bigint := 0;
BEGIN
    -- One at a time: two would only wait for each other's locks.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('"winch" winch prune', 0)) THEN
        RETURN 0;
    END IF;
    BEGIN
        PERFORM "winch".make_partitions(now);
    EXCEPTION WHEN lock_not_available THEN
        NULL; -- somebody reads the net for long; there is time until tomorrow
    END;
    -- Jobs that somebody still needs leave the partitions that are about to go. None comes into these any more.
    UPDATE "winch".archive
    SET drop_on = utc::date + 2
    WHERE drop_on <= utc::date
        AND strpos(headers, '"winch-awaited":"') > 0
        AND "winch".still_awaited(headers);
    FOR part IN
        SELECT
            child.oid::regclass AS name,
            CASE WHEN child.relname ~ '^archive_[0-9]{8}$'
                THEN to_date(right(child.relname, 8), 'YYYYMMDD') END AS day,
            pg_relation_size(child.oid) < 16777216 AS is_small,
            child.reltuples
        FROM pg_inherits
        JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
        WHERE pg_inherits.inhparent = '"winch".archive'::regclass
        ORDER BY day
    LOOP
        gone := 0;
        IF part.day <= utc::date THEN
            BEGIN
                -- The lock before the count, so that nothing is dropped uncounted.
                LOCK TABLE "winch".archive IN ACCESS EXCLUSIVE MODE;
                EXECUTE format(
                    'DELETE FROM "winch".given_id WHERE id IN (SELECT id FROM %s WHERE is_given_id)',
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
                        WHERE "winch".keep_until(state, keep_seconds, finished_at) <= $1
                            AND (strpos(headers, ''"winch-awaited":"'') > 0
                                AND "winch".still_awaited(headers)) IS NOT TRUE
                        LIMIT $2
                    ),
                    gone AS (DELETE FROM %1$s WHERE ctid = ANY (ARRAY(SELECT ctid FROM over))
                        RETURNING id, is_given_id),
                    freed AS (DELETE FROM "winch".given_id
                        WHERE id IN (SELECT id FROM gone WHERE is_given_id))
                    SELECT count(*) FROM gone',
                    part.name
                ) INTO gone USING utc, most - total;
            ELSIF part.day IS NULL THEN
                EXECUTE format(
                    'WITH over AS (SELECT ctid FROM %1$s WHERE drop_on <= $1 LIMIT $2),
                    gone AS (DELETE FROM %1$s WHERE ctid = ANY (ARRAY(SELECT ctid FROM over))
                        RETURNING id, is_given_id),
                    freed AS (DELETE FROM "winch".given_id
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
function winch.recent(jsonb,text,timestamp with time zone): returns integer stable
function winch.refuse_job(): returns trigger 

BEGIN
    RAISE EXCEPTION 'job % cannot be % as it is', NEW.id, NEW.state
        USING ERRCODE = 'check_violation', CONSTRAINT = 'job_is_possible', TABLE = 'job', SCHEMA = TG_TABLE_SCHEMA;
END
function winch.ring(text[],boolean): returns boolean 

DECLARE
    payload text;
    has_due boolean;
BEGIN
    SELECT json_agg(queue.name)::text, bool_or(queue.name = '') INTO payload, has_due
    FROM "winch".queue
    WHERE (queue.name = ANY (queues) OR (is_due AND queue.name = ''))
        AND queue.waiting_until > clock_timestamp();
    IF payload IS NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_notify(
        'winch_' || md5('"winch"'),
        CASE WHEN octet_length(payload) > 7900 THEN '[]' ELSE payload END
    );
    IF has_due THEN
        PERFORM pg_notify('winch_' || md5('"winch"') || '_due', '[""]');
    END IF;
    RETURN true;
END
function winch.sort_key(timestamp with time zone,integer): returns bigint immutable
function winch.stamp(timestamp with time zone): returns text stable
function winch.still_awaited(text): returns boolean stable 

DECLARE
    said text := substring(headers FROM '"winch-awaited":"([^"]*)"');
    flow text := substring(headers FROM '"winch-flow":"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22})"');
BEGIN
    IF starts_with(said, 'all:') THEN
        IF EXISTS (SELECT FROM "winch".waiting WHERE key = left(said, 34)) THEN
            RETURN true;
        END IF;
    ELSIF said ~ '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' THEN
        IF EXISTS (SELECT FROM "winch".job WHERE id = said::uuid) THEN
            RETURN true;
        END IF;
    END IF;
    RETURN flow IS NOT NULL AND EXISTS (
        SELECT
        FROM "winch".job
        WHERE id BETWEEN (left(flow, 13) || '-0000-0000-000000000000')::uuid
                AND (left(flow, 13) || '-ffff-ffff-ffffffffffff')::uuid
            AND strpos(job.headers, '"winch-inputs"') > 0
            AND strpos(job.headers, flow) > 0
    );
END
function winch.tell_waiting(): returns trigger 

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
        INSERT INTO "winch".recheck (key) VALUES (together);
        IF NOT "winch".is_unclaimed_left(together) THEN
            PERFORM "winch".ring(NULL, true);
        END IF;
        IF strpos(OLD.headers, '+job"') = 0 THEN
            PERFORM set_config('winch.told', OLD.headers, true);
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO "winch".recheck (key) VALUES ('job:' || OLD.id);
    PERFORM "winch".ring(NULL, true);
    RETURN NULL;
END
function winch.witness_archive(): returns trigger 

BEGIN
    INSERT INTO "winch".job_event (job, v, kind, session, attempt, at)
    SELECT
        OLD.id,
        1 + coalesce(max(v), 0),
        'deleted',
        OLD.session,
        OLD.attempt,
        coalesce(nullif(current_setting('winch.at', true), '')::timestamptz, clock_timestamp())
    FROM "winch".job_event
    WHERE job = OLD.id;
    RETURN NULL;
END
function winch.witness_job(): returns trigger 

DECLARE
    verb text := current_setting('winch.verb');
    job_id uuid := coalesce(NEW.id, OLD.id);
    next_v bigint := 1 + coalesce((SELECT max(v) FROM "winch".job_event WHERE job = job_id), 0);
    after record := NEW;
BEGIN
    IF TG_OP = 'DELETE' AND verb IN ('enqueue', 'enqueue_after') THEN -- an insert taken back: it never happened
        DELETE FROM "winch".job_event WHERE job = job_id AND v = next_v - 1;
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' AND verb = 'delete' THEN
        SELECT NULL::text AS state, OLD.session, OLD.attempt, OLD.history, NULL::uuid AS ended_token INTO after;
    ELSIF TG_OP = 'DELETE' THEN
        SELECT state, session, attempt, history, ended_token INTO after FROM "winch".archive WHERE id = job_id;
    END IF;
    IF verb = 'finish_and_claim' THEN
        verb := CASE WHEN TG_OP = 'UPDATE' AND NEW.state = 'running' THEN 'claim' ELSE 'finish' END;
    END IF;
    IF TG_OP = 'INSERT' AND NEW.state = 'running' THEN -- stored under an offer: two changes in one row
        INSERT INTO "winch".job_event (job, v, kind, state, attempt, at)
        VALUES (
            job_id, next_v, 'enqueued', 'ready', 0,
            coalesce(nullif(current_setting('winch.at', true), '')::timestamptz, clock_timestamp())
        );
        next_v := next_v + 1;
        verb := 'claim';
    END IF;
    INSERT INTO "winch".job_event (job, v, kind, state, token, by_token, session, attempt, at)
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
trigger winch.archive.archive_event_delete: CREATE TRIGGER archive_event_delete AFTER DELETE ON winch.archive FOR EACH ROW WHEN ((current_setting('winch.verb'::text, true) = 'delete'::text)) EXECUTE FUNCTION winch.witness_archive()
trigger winch.job.job_awaited: CREATE TRIGGER job_awaited AFTER DELETE ON winch.job FOR EACH ROW WHEN (((old.headers IS NOT NULL) AND (strpos(old.headers, '"winch-awaited"'::text) > 0))) EXECUTE FUNCTION winch.tell_waiting()
trigger winch.job.job_event_delete: CREATE TRIGGER job_event_delete AFTER DELETE ON winch.job FOR EACH ROW WHEN ((current_setting('winch.verb'::text, true) <> ''::text)) EXECUTE FUNCTION winch.witness_job()
trigger winch.job.job_event_insert: CREATE TRIGGER job_event_insert AFTER INSERT ON winch.job FOR EACH ROW WHEN ((current_setting('winch.verb'::text, true) <> ''::text)) EXECUTE FUNCTION winch.witness_job()
trigger winch.job.job_event_update: CREATE TRIGGER job_event_update AFTER UPDATE ON winch.job FOR EACH ROW WHEN (((old.state <> new.state) AND (current_setting('winch.verb'::text, true) <> ''::text))) EXECUTE FUNCTION winch.witness_job()
trigger winch.job.job_frees_key: CREATE TRIGGER job_frees_key AFTER DELETE ON winch.job FOR EACH ROW WHEN ((old.unique_key IS NOT NULL)) EXECUTE FUNCTION winch.free_key()
trigger winch.job.job_has_gates: CREATE TRIGGER job_has_gates BEFORE INSERT ON winch.job FOR EACH ROW WHEN (((new.options IS NOT NULL) OR (new.filed <> new.state))) EXECUTE FUNCTION winch.mark_gated()
trigger winch.job.job_is_gone_from_gates: CREATE TRIGGER job_is_gone_from_gates AFTER DELETE ON winch.job FOR EACH ROW WHEN ((old.gate IS NOT NULL)) EXECUTE FUNCTION winch.leave_gates()
trigger winch.job.job_is_handed_over: CREATE TRIGGER job_is_handed_over BEFORE INSERT ON winch.job FOR EACH ROW WHEN ((new.fence < 0)) EXECUTE FUNCTION winch.hand_over()
trigger winch.job.job_is_possible: CREATE TRIGGER job_is_possible AFTER UPDATE ON winch.job FOR EACH ROW WHEN (((new.attempt < 0) OR
        CASE
            WHEN (new.token IS NULL) THEN ((new.filed <> new.state) OR (new.state <> ALL (ARRAY['ready'::text, 'scheduled'::text, 'retrying'::text, 'blocked'::text])))
            ELSE ((new.state <> 'running'::text) OR (new.session IS NULL) OR (new.claimed_at IS NULL))
        END)) EXECUTE FUNCTION winch.refuse_job()
trigger winch.job.job_leaves_gates: CREATE TRIGGER job_leaves_gates AFTER UPDATE ON winch.job FOR EACH ROW WHEN (((old.gate IS NOT NULL) AND (old.state = 'running'::text) AND (new.state <> 'running'::text))) EXECUTE FUNCTION winch.leave_gates()
