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
column winch.archive.15 result: text
column winch.archive.16 fingerprint: text
column winch.archive.17 queue: text not null
column winch.archive.18 task: text not null
column winch.archive.19 args: text not null
column winch.archive.20 session: uuid
column winch.archive.21 ended_token: uuid
column winch.archive.22 claimed_at: timestamp with time zone
column winch.archive.23 expires_at: timestamp with time zone
column winch.archive.24 cancel_requested_at: timestamp with time zone
column winch.archive.25 keep_seconds: double precision
column winch.archive.26 max_attempts: integer
column winch.archive.27 tenant: text
column winch.archive.28 fifo: text
column winch.archive.29 unique_key: text
column winch.archive.30 tags: text[]
column winch.archive.31 headers: text
column winch.archive.32 options: text
column winch.archive.33 progress: text
column winch.archive.34 checkpoint: text
column winch.archive.35 log: text
column winch.archive.36 history: jsonb
column winch.archive.37 reason: text
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
column winch.archive_default.15 result: text
column winch.archive_default.16 fingerprint: text
column winch.archive_default.17 queue: text not null
column winch.archive_default.18 task: text not null
column winch.archive_default.19 args: text not null
column winch.archive_default.20 session: uuid
column winch.archive_default.21 ended_token: uuid
column winch.archive_default.22 claimed_at: timestamp with time zone
column winch.archive_default.23 expires_at: timestamp with time zone
column winch.archive_default.24 cancel_requested_at: timestamp with time zone
column winch.archive_default.25 keep_seconds: double precision
column winch.archive_default.26 max_attempts: integer
column winch.archive_default.27 tenant: text
column winch.archive_default.28 fifo: text
column winch.archive_default.29 unique_key: text
column winch.archive_default.30 tags: text[]
column winch.archive_default.31 headers: text
column winch.archive_default.32 options: text
column winch.archive_default.33 progress: text
column winch.archive_default.34 checkpoint: text
column winch.archive_default.35 log: text
column winch.archive_default.36 history: jsonb
column winch.archive_default.37 reason: text
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
column winch.job.05 version: integer not null
column winch.job.06 priority: integer not null
column winch.job.07 crashes: integer not null default 0
column winch.job.08 rescues: integer not null default 0
column winch.job.09 fence: bigint not null default 0
column winch.job.10 attempt: integer not null default 0
column winch.job.11 is_suspect: boolean not null default false
column winch.job.12 is_given_id: boolean not null default false
column winch.job.13 token: uuid
column winch.job.14 session: uuid
column winch.job.15 claimed_at: timestamp with time zone
column winch.job.16 state: text not null
column winch.job.17 filed: text not null default 'ready'::text
column winch.job.18 gate: text
column winch.job.19 queue: text not null
column winch.job.20 task: text not null
column winch.job.21 args: text not null
column winch.job.22 unique_key: text
column winch.job.23 expires_at: timestamp with time zone
column winch.job.24 headers: text
column winch.job.25 options: text
column winch.job.26 checkpoint: text
column winch.job.27 ended_token: uuid
column winch.job.28 cancel_requested_at: timestamp with time zone
column winch.job.29 keep_seconds: double precision
column winch.job.30 max_attempts: integer
column winch.job.31 tenant: text
column winch.job.32 fifo: text
column winch.job.33 seq: bigint
column winch.job.34 tags: text[]
column winch.job.35 progress: text
column winch.job.36 log: text
column winch.job.37 history: jsonb
column winch.job.38 reason: text
column winch.job.39 has_undo: boolean
column winch.job.40 note_token: uuid
column winch.job.41 note_number: integer
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
column winch.permit.05 session: uuid
column winch.permit.06 at_once: integer
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
column winch.session.15 supervisor: text not null default ''::text
column winch.session.16 labels: text not null default '{}'::text
column winch.session.17 queue_limits: text not null default '{}'::text
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
index winch.job_fifo: CREATE INDEX job_fifo ON winch.job USING btree (fifo, seq, id) WHERE (fifo IS NOT NULL) -- serves claim and admit: which job is the first of a FIFO key
index winch.job_gated: CREATE INDEX job_gated ON winch.job USING btree (queue, sort_key, id) WHERE ((filed = 'ready'::text) AND (gate IS NOT NULL) AND (tenant IS NULL)) -- serves claim and explain of jobs with gates; has what claims by the hundred run, too
index winch.job_pkey: CREATE UNIQUE INDEX job_pkey ON winch.job USING btree (id)
index winch.job_priority: CREATE INDEX job_priority ON winch.job USING btree (queue, priority, sort_key, id) WHERE ((filed = 'ready'::text) AND (priority <> 0)) -- serves claim of queues with strict order
index winch.job_ready: CREATE INDEX job_ready ON winch.job USING btree (queue, sort_key, id) WHERE ((filed = 'ready'::text) AND (gate IS NULL)) -- serves claim and explain; has what claims by the hundred run, too
index winch.job_running: CREATE INDEX job_running ON winch.job USING btree (id) WHERE (filed = 'running'::text) -- serves the view claimed
index winch.job_tenant: CREATE INDEX job_tenant ON winch.job USING btree (queue, tenant, sort_key, id) WHERE ((filed = 'ready'::text) AND (gate IS NOT NULL) AND (tenant IS NOT NULL)) -- serves claim and explain of jobs with tenants; has what claims by the hundred run, too
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
index winch.signal_taken: CREATE INDEX signal_taken ON winch.signal USING btree (taken_by, wanted_by) WHERE (taken_by IS NOT NULL) -- serves take_signal, for a job that has taken one before
index winch.signal_untaken: CREATE INDEX signal_untaken ON winch.signal USING btree (name, sent_at, id) WHERE (taken_by IS NULL) -- serves take_signal and unblock
index winch.unique_kept_pkey: CREATE UNIQUE INDEX unique_kept_pkey ON winch.unique_kept USING btree (key)
index winch.unique_kept_until: CREATE INDEX unique_kept_until ON winch.unique_kept USING btree (until) -- serves prune
index winch.unique_key_pkey: CREATE UNIQUE INDEX unique_key_pkey ON winch.unique_key USING btree (key)
index winch.waiting_key: CREATE INDEX waiting_key ON winch.waiting USING btree (key) -- serves unblock
index winch.waiting_pkey: CREATE UNIQUE INDEX waiting_pkey ON winch.waiting USING btree (job, key)
index winch.waiting_until: CREATE INDEX waiting_until ON winch.waiting USING btree (until) WHERE (until IS NOT NULL) -- serves unblock
index winch.winch_migration_pkey: CREATE UNIQUE INDEX winch_migration_pkey ON winch.winch_migration USING btree (number)
function winch.add_lease(uuid,uuid,timestamp with time zone,uuid[]): returns void 

    INSERT INTO "winch".lease (token, session, claimed_at, unended, ids)
    VALUES (by_token, by_session, at, cardinality(more), more)
    ON CONFLICT (token) DO UPDATE
    SET unended = lease.unended + excluded.unended,
        ids = lease.ids || excluded.ids;
function winch.candidates(text,boolean,text[],bigint,bigint,bigint): returns TABLE(id uuid, at tid, sort_key bigint, attempt integer, options text, tenant text, is_plain boolean, priority integer, weight bigint, share bigint) stable 

#variable_conflict use_column
BEGIN
    IF is_by_priority THEN
        -- The priorities by steps in their index.
        RETURN QUERY
        WITH RECURSIVE levels (priority) AS (
            (
                SELECT job.priority
                FROM "winch".job
                WHERE job.queue = wanted AND job.filed = 'ready' AND job.state = 'ready' AND job.priority <> 0
                ORDER BY job.priority DESC
                LIMIT 1
            )
            UNION ALL
            SELECT next.priority
            FROM levels
            CROSS JOIN LATERAL (
                SELECT job.priority
                FROM "winch".job
                WHERE job.queue = wanted AND job.filed = 'ready' AND job.state = 'ready' AND job.priority <> 0 AND job.priority < levels.priority
                ORDER BY job.priority DESC
                LIMIT 1
            ) AS next
        )
        SELECT
            first.id, first.at, first.sort_key, first.attempt, first.options, first.tenant, first.is_plain,
            first.priority, 1::bigint, NULL::bigint
        FROM levels
        CROSS JOIN LATERAL (
            SELECT
                job.id, job.ctid AS at, job.sort_key, job.attempt, job.options, job.tenant,
                job.gate IS NULL AS is_plain, job.priority
            FROM "winch".job
            WHERE job.queue = wanted
                AND job.filed = 'ready'
                AND job.state = 'ready'
                AND job.priority <> 0
                AND job.priority = levels.priority
                AND job.tenant IS NULL
                AND (known IS NULL OR job.task = ANY (known))
            ORDER BY job.queue, job.priority, job.sort_key, job.id
            LIMIT most + ahead
        ) AS first
        ORDER BY first.priority DESC, first.sort_key, first.id
        LIMIT most + ahead;
    END IF;
    RETURN QUERY
    SELECT
        job.id, job.ctid, job.sort_key, job.attempt, job.options, job.tenant, false, job.priority, 1::bigint, NULL::bigint
    FROM "winch".job
    WHERE job.queue = wanted
        AND job.filed = 'ready'
        AND job.state = 'ready'
        AND job.gate IS NOT NULL
        AND job.tenant IS NULL
        AND (job.priority = 0 OR NOT is_by_priority)
        AND (known IS NULL OR job.task = ANY (known))
    ORDER BY job.queue, job.sort_key, job.id
    LIMIT most + ahead;
    RETURN QUERY
    SELECT job.id, job.ctid, job.sort_key, job.attempt, NULL::text, NULL::text, true, job.priority, 1::bigint, NULL::bigint
    FROM "winch".job
    WHERE job.queue = wanted
        AND job.filed = 'ready'
        AND job.gate IS NULL
        AND job.state = 'ready'
        AND (job.priority = 0 OR NOT is_by_priority)
        AND (known IS NULL OR job.task = ANY (known))
    ORDER BY job.queue, job.sort_key, job.id
    LIMIT most;
    IF NOT EXISTS (
        SELECT
        FROM "winch".job
        WHERE job.queue = wanted AND job.filed = 'ready' AND job.state = 'ready' AND job.gate IS NOT NULL AND job.tenant IS NOT NULL
    ) THEN
        RETURN;
    END IF;
    IF is_by_priority THEN
        RETURN QUERY
        SELECT
            first.id, first.at, first.sort_key, first.attempt, first.options, first.tenant, false, first.priority,
            first.weight, NULL::bigint
        FROM (
            SELECT
                job.id, job.ctid AS at, job.sort_key, job.attempt, job.options, job.tenant, job.priority,
                greatest((limit_set.spec::jsonb ->> 'n')::bigint, 1) AS weight,
                row_number() OVER (PARTITION BY job.tenant ORDER BY job.priority DESC, job.sort_key, job.id) AS place
            FROM "winch".job
            LEFT JOIN "winch".limit_set ON limit_set.name = 'tenant:' || job.tenant
            WHERE job.queue = wanted
                AND job.filed = 'ready'
                AND job.state = 'ready'
                AND job.gate IS NOT NULL
                AND job.tenant IS NOT NULL
                AND (known IS NULL OR job.task = ANY (known))
        ) AS first
        WHERE first.place <= most + spare;
        RETURN;
    END IF;
    -- Of each tenant what its weight gives it of the claim, and `spare` more. Tenants whose jobs all run are counted, too: to
    -- tell them apart, all those jobs would be read. Each is read from its first live job: where many have ended, the index
    -- has their entries before that one, and to pass over them takes longer than all else here.
    RETURN QUERY
    WITH RECURSIVE tenants (tenant, sort_key, id) AS (
        (
            SELECT job.tenant, job.sort_key, job.id
            FROM "winch".job
            WHERE job.queue = wanted AND job.filed = 'ready' AND job.gate IS NOT NULL AND job.tenant IS NOT NULL
            ORDER BY job.tenant, job.sort_key, job.id
            LIMIT 1
        )
        UNION ALL
        SELECT next.tenant, next.sort_key, next.id
        FROM tenants
        CROSS JOIN LATERAL (
            SELECT job.tenant, job.sort_key, job.id
            FROM "winch".job
            WHERE job.queue = wanted
                AND job.filed = 'ready'
                AND job.gate IS NOT NULL
                AND job.tenant IS NOT NULL
                AND job.tenant > tenants.tenant
            ORDER BY job.tenant, job.sort_key, job.id
            LIMIT 1
        ) AS next
    ),
    weighed AS MATERIALIZED (
        SELECT tenants.*, greatest((limit_set.spec::jsonb ->> 'n')::bigint, 1) AS weight
        FROM tenants
        LEFT JOIN "winch".limit_set ON limit_set.name = 'tenant:' || tenants.tenant
    ),
    shares AS MATERIALIZED (
        SELECT
            weighed.*,
            least(most, ceil(most * weighed.weight / sum(weighed.weight) OVER ())::bigint) + spare AS share
        FROM weighed
    )
    SELECT
        first.id, first.at, first.sort_key, first.attempt, first.options, first.tenant, false, first.priority,
        shares.weight, shares.share
    FROM shares
    CROSS JOIN LATERAL (
        SELECT job.id, job.ctid AS at, job.sort_key, job.attempt, job.options, job.tenant, job.priority
        FROM "winch".job
        WHERE job.queue = wanted
            AND job.filed = 'ready'
            AND job.state = 'ready'
            AND job.gate IS NOT NULL
            AND job.tenant = shares.tenant
            AND (job.sort_key, job.id) >= (shares.sort_key, shares.id)
            AND (known IS NULL OR job.task = ANY (known))
        ORDER BY job.queue, job.tenant, job.sort_key, job.id
        LIMIT shares.share
    ) AS first;
END
function winch.claim_gated(text[],uuid,uuid,text[],bigint,bigint,bigint,bigint,bigint,bigint,timestamp with time zone,text[]): returns TABLE(place bigint, has_permit boolean, rest integer, is_rare boolean, id text, queue text, task text, args text, attempt integer, fence bigint, created_at timestamp with time zone, run_at timestamp with time zone, claimed_at timestamp with time zone, version integer, is_suspect boolean, expires_at timestamp with time zone, headers text, options text, checkpoint text) enable_bitmapscan=off, enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan 

#variable_conflict use_column
DECLARE
    at timestamptz := coalesce(given, clock_timestamp());
    now_us bigint;
    got bigint := 0;
    number bigint;
    scoped bigint := 0;
    is_any boolean := false;
    has_locked boolean := false;
    is_odd boolean := false;
    is_again boolean;
    is_batch boolean;
    go_on integer;
    setting text;
    one record;
    had record;
    has_rate boolean;
    room bigint;
    is_ruled boolean;
    is_fair boolean;
    is_simple boolean;
    is_straight boolean;
    is_placed boolean;
    plain integer;
    settings jsonb;
    turns jsonb;
    ends jsonb;
    virtual double precision;
    -- Candidates, line by line. A line is a tenant, or all jobs without one.
    c_id uuid[];
    c_attempt integer[];
    c_options text[];
    c_text integer[];
    c_plain boolean[];
    c_line integer[];
    c_weight bigint[];
    c_share bigint[];
    c_tenant text[];
    c_at tid[];
    c_place tid[];
    l_tenant text[];
    l_weight bigint[];
    l_cut boolean[];
    l_next integer[];
    l_end integer[];
    l_ended double precision[];
    -- Slots of the draw: which line is served, at which virtual time.
    s_line integer[];
    s_tag double precision[];
    -- Texts of options, the uses of gates in them, and the gates.
    t_options text[];
    t_from integer[];
    t_to integer[];
    t_scoped boolean[];
    t_retried boolean[];
    t_gate integer[];
    is_scoped boolean;
    u_text bigint[];
    u_gate bigint[];
    u_kind text[];
    u_n bigint[];
    u_weight bigint[];
    u_retries boolean[];
    keys text[];
    g_key text[];
    g_limits text[];
    g_kind text[];
    g_name text[];
    g_how text[];
    g_n bigint[];
    g_per bigint[];
    g_burst bigint[];
    g_set boolean[];
    g_state text[];
    g_open bigint[];
    g_used bigint[];
    g_own bigint[];
    g_most bigint[];
    g_permits bigint[];
    g_turn uuid[];
    g_free uuid[];
    g_first uuid[];
    g_use integer[];
    g_room bigint[];
    g_level double precision[];
    g_kept jsonb[];
    g_took bigint[];
    g_least bigint[];
    -- What is decided. `drawn` has NULL for the next plain job.
    drawn uuid[];
    drawn_at tid[];
    drawn_text integer[];
    plain_places bigint[];
    held uuid[];
    held_at integer[];
    taken uuid[];
    line integer;
    c integer;
    t integer;
    g integer;
    closed integer;
    more bigint;
    next_at bigint;
    kind text;
    has_room boolean;
    opens boolean := false;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    PERFORM FROM "winch".session WHERE session.id = by_session AND session.ended_at IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        place := 0;
        has_permit := false;
        is_rare := false;
        RETURN NEXT;
        RETURN;
    END IF;
    setting := set_config('lock_timeout', '4s', true);
    FOR one IN
        SELECT
            wanted.queue, wanted.number::integer AS number, queue.concurrency, coalesce(queue.is_strict, false) AS is_strict,
            queue.concurrency IS NOT NULL
                OR coalesce(queue.is_strict, false)
                OR EXISTS (
                    SELECT
                    FROM "winch".job
                    WHERE job.queue = wanted.queue AND job.filed = 'ready' AND job.state = 'ready' AND job.gate IS NOT NULL
                        AND job.tenant IS NULL
                )
                OR EXISTS (
                    SELECT
                    FROM "winch".job
                    WHERE job.queue = wanted.queue AND job.filed = 'ready' AND job.state = 'ready' AND job.gate IS NOT NULL
                        AND job.tenant IS NOT NULL
                ) AS has_gates
        FROM unnest(served) WITH ORDINALITY AS wanted (queue, number)
        LEFT JOIN "winch".queue ON queue.name = wanted.queue
        WHERE queue.paused_at IS NULL
        ORDER BY wanted.number
    LOOP
        is_any := is_any OR one.has_gates;
        CONTINUE WHEN got >= most OR go_on IS NOT NULL;
        room := most - got;
        IF within IS NOT NULL THEN
            EXIT WHEN has_locked OR one.concurrency IS NOT NULL OR one.is_strict;
            IF NOT one.has_gates THEN
                EXIT WHEN EXISTS (
                    SELECT
                    FROM "winch".job
                    WHERE job.queue = one.queue
                        AND job.filed = 'ready'
                        AND job.gate IS NULL
                        AND job.state = 'ready'
                        AND (known IS NULL OR job.task = ANY (known))
                );
                CONTINUE;
            END IF;
        END IF;
        IF NOT one.has_gates THEN
            RETURN QUERY
            SELECT
                job.sort_key, false, NULL::integer, false, job.id::text, job.queue, job.task, job.args, job.attempt, job.fence, job.created_at, job.run_at,
                job.claimed_at, job.version, job.is_suspect, job.expires_at, job.headers, job.options, job.checkpoint
            FROM "winch".take_plain(one.queue, by_session, by_token, known, room, batch_from, at) AS job;
            GET DIAGNOSTICS number = ROW_COUNT;
            got := got + number;
            CONTINUE;
        END IF;
        -- A second queue needs gates that may sort before those that are locked: another call takes from it.
        IF has_locked THEN
            go_on := one.number;
            CONTINUE;
        END IF;
        -- Full, as far as is seen without the lock: the end of one of its jobs wakes its workers.
        CONTINUE WHEN one.concurrency <= (
            SELECT coalesce(sum(permit.weight), 0) FROM "winch".permit WHERE permit.gate = 'queue:' || one.queue
        );
        is_ruled := one.concurrency IS NOT NULL OR one.is_strict;

        -- The candidates and their gates. Lines, texts and gates are numbered in the order of their characters.
        BEGIN
            -- Again where few were found, and tenants that had their share have more than the others.
            more := spare;
            FOR look IN 1..2 LOOP
                SELECT
                    array_agg(job.id), array_agg(job.attempt), array_agg(job.options), array_agg(job.is_plain),
                    array_agg(job.tenant), array_agg(job.weight), array_agg(job.share), array_agg(job.at),
                    bool_or(job.tenant IS NOT NULL)
                INTO c_id, c_attempt, c_options, c_plain, c_tenant, c_weight, c_share, c_at, is_fair
                FROM (
                    SELECT *
                    FROM "winch".candidates(one.queue, one.is_strict, known, room, ahead, more) AS first
                    ORDER BY
                        coalesce(first.tenant, '') COLLATE "C", CASE WHEN one.is_strict THEN -first.priority ELSE 0 END,
                        first.sort_key, first.id
                ) AS job;
                EXIT WHEN is_fair IS NOT TRUE OR one.is_strict OR 2 * cardinality(c_id) > room;
                number := (
                    SELECT count(*)
                    FROM (SELECT FROM unnest(c_tenant, c_share) AS job (tenant, share) GROUP BY tenant HAVING count(*) >= min(share)) AS cut
                );
                EXIT WHEN number = 0;
                more := spare + room / number;
            END LOOP;
            t_options := ARRAY(
                SELECT DISTINCT options COLLATE "C" FROM unnest(c_options) AS options WHERE options IS NOT NULL ORDER BY 1
            );
            -- Mostly each text has one gate, and these are in the order of the texts: nothing is sorted then.
            SELECT
                coalesce(array_agg(use.number), '{}'), array_agg(use.kind), array_agg(use.n), array_agg(use.weight),
                array_agg(use.is_for_retries), coalesce(array_agg(use.key), '{}'), array_agg(use.name),
                array_agg(use.how), array_agg(use.per), array_agg(use.burst),
                coalesce(bool_and(use.kind IN ('limit', 'fifo') AND use.place = 1 AND use.is_after), false)
                    AND count(*) = cardinality(t_options)
            INTO u_text, u_kind, u_n, u_weight, u_retries, g_key, g_name, g_how, g_per, g_burst, is_straight
            FROM (
                SELECT
                    use.*,
                    use.key IS NOT NULL
                        AND coalesce(use.key COLLATE "C" > lag(use.key) OVER () COLLATE "C", use.number = 1) AS is_after
                FROM "winch".gate_uses(t_options) AS use
            ) AS use;
            IF is_straight OR cardinality(u_text) = 0 THEN
                u_gate := u_text;
                g_kind := u_kind;
                g_n := u_n;
                is_odd := false;
            ELSE
                WITH uses AS MATERIALIZED (
                    SELECT use.*, dense_rank() OVER (ORDER BY use.key COLLATE "C") AS gate
                    FROM "winch".gate_uses(t_options) AS use
                )
                SELECT own.*, gates.*
                INTO
                    u_text, u_gate, u_kind, u_n, u_weight, u_retries,
                    g_key, g_kind, g_name, g_how, g_n, g_per, g_burst, is_odd
                FROM (
                    SELECT
                        coalesce(array_agg(use.number), '{}'), array_agg(use.gate), array_agg(use.kind), array_agg(use.n),
                        array_agg(use.weight), array_agg(use.is_for_retries)
                    FROM (SELECT * FROM uses ORDER BY number, place) AS use
                ) AS own, (
                    SELECT
                        coalesce(array_agg(use.key), '{}'), array_agg(use.kind), array_agg(use.name), array_agg(use.how),
                        array_agg(use.n), array_agg(use.per), array_agg(use.burst),
                        bool_or(use.key IS NULL OR use.kind IS NULL OR use.kind NOT IN ('limit', 'rate', 'fifo', 'scope'))
                    FROM (SELECT DISTINCT ON (gate) * FROM uses ORDER BY gate, number, place) AS use
                ) AS gates;
            END IF;
        EXCEPTION WHEN data_exception THEN
            is_odd := true;
        END;
        IF is_odd THEN
            go_on := one.number;
            CONTINUE;
        END IF;
        CONTINUE WHEN c_id IS NULL;
        plain := cardinality(array_positions(c_plain, true));
        held := '{}';
        held_at := '{}';
        is_again := false;

        -- The locks.
        keys := g_key
            || CASE WHEN is_fair THEN ARRAY['tenants:' || one.queue] ELSE '{}' END
            || CASE WHEN one.concurrency IS NOT NULL THEN ARRAY['queue:' || one.queue] ELSE '{}' END;
        IF within IS NOT NULL THEN
            has_locked := true;
        ELSIF cardinality(keys) > 0 THEN
            PERFORM "winch".lock_gates(keys, 'take');
            has_locked := true;
        END IF;
        at := coalesce(given, clock_timestamp());
        now_us := "winch".micros(at);
        drawn := NULL;
        IF is_fair AND NOT is_ruled AND cardinality(u_text) = 0 AND within IS NULL THEN
            SELECT turn.* INTO drawn, drawn_at, plain_places
            FROM "winch".draw_turns(one.queue, c_id, c_at, c_plain, c_tenant, c_weight, room) AS turn;
        END IF;

        -- What the gates have, and what they let through.
        <<decide>>
        BEGIN
            EXIT decide WHEN drawn IS NOT NULL;
            -- By hash: see the full joins below.
            IF cardinality(t_options) = 1 AND plain = 0 THEN
                c_text := array_fill(1, ARRAY[cardinality(c_id)]);
            ELSE
                c_text := ARRAY(
                    SELECT text.number
                    FROM unnest(c_options) WITH ORDINALITY AS job (options, number)
                    FULL JOIN unnest(t_options) WITH ORDINALITY AS text (options, number) ON text.options = job.options
                    ORDER BY job.number
                );
            END IF;
            IF is_fair THEN
                c_line := ARRAY(
                    SELECT dense_rank() OVER (ORDER BY coalesce(job.tenant, '') COLLATE "C")
                    FROM unnest(c_tenant) WITH ORDINALITY AS job (tenant, number)
                    ORDER BY job.number
                );
            ELSE
                c_line := array_fill(1, ARRAY[cardinality(c_id)]);
            END IF;
            IF within IS NOT NULL THEN
                EXIT WHEN is_fair;
                number := coalesce((
                    SELECT min(job.number) - 1
                    FROM unnest(c_text, c_plain) WITH ORDINALITY AS job (text, is_plain, number)
                    WHERE job.is_plain OR job.text IN (
                        SELECT use.text FROM unnest(u_text, u_gate) AS use (text, gate) WHERE g_key[use.gate] <> ALL (within)
                    )
                ), cardinality(c_id));
                EXIT WHEN number = 0;
                c_id := c_id[:number];
                c_attempt := c_attempt[:number];
                c_options := c_options[:number];
                c_text := c_text[:number];
                c_plain := c_plain[:number];
                c_line := c_line[:number];
                c_tenant := c_tenant[:number];
                c_weight := c_weight[:number];
                c_share := c_share[:number];
                plain := 0;
            END IF;

            g_limits := ARRAY(SELECT key FROM unnest(g_key, g_kind) AS wanted (key, kind) WHERE kind = 'limit');
            BEGIN
                -- The permits of limits. A full join is one by hash: the planner expects ten rows here, and would compare each
                -- gate with each. As gate_used has it; and what this session has, with its heaviest.
                SELECT
                    array_agg(gate.used), array_agg(gate.own), array_agg(gate.most), array_agg(gate.permits)
                INTO g_used, g_own, g_most, g_permits
                FROM (
                    SELECT
                        coalesce(held.used, 0) AS used, coalesce(held.own, 0) AS own, coalesce(held.most, 0) AS most,
                        coalesce(held.permits, 0) AS permits
                    FROM unnest(g_key) WITH ORDINALITY AS wanted (key, number)
                    FULL JOIN (
                        SELECT
                            one.gate,
                            sum(least(one.weight, one.at_once::bigint * one.most))::bigint AS used,
                            sum(one.permits)::bigint AS permits,
                            max(one.weight) FILTER (WHERE one.is_own) AS own,
                            max(one.most) FILTER (WHERE one.is_own) AS most
                        FROM (
                            SELECT
                                permit.gate, permit.at_once, count(*) AS permits, sum(permit.weight)::bigint AS weight,
                                max(permit.weight)::bigint AS most,
                                permit.session = by_session AND permit.at_once = by_at_once AS is_own
                            FROM "winch".permit
                            WHERE permit.gate = ANY (g_limits)
                            GROUP BY permit.gate, permit.session, permit.at_once
                        ) AS one
                        GROUP BY one.gate
                    ) AS held ON held.gate = wanted.key
                    ORDER BY wanted.number
                ) AS gate;
                -- What is set for the fleet, once for each name: many keys have one.
                SELECT coalesce(jsonb_object_agg(limit_set.name, limit_set.spec::jsonb), '{}') INTO settings
                FROM "winch".limit_set
                WHERE limit_set.name = ANY (ARRAY(SELECT DISTINCT name FROM unnest(g_name) AS name));
                is_odd := false;
                g_set := array_fill(settings <> '{}', ARRAY[cardinality(g_key)]);
                IF cardinality(g_limits) = cardinality(g_key) AND (
                    settings = '{}' OR (SELECT bool_and(name = g_name[1]) FROM unnest(g_name) AS name)
                ) THEN
                    g_state := array_fill(NULL::text, ARRAY[cardinality(g_key)]);
                    g_open := array_fill(NULL::bigint, ARRAY[cardinality(g_key)]);
                    g_turn := array_fill(NULL::uuid, ARRAY[cardinality(g_key)]);
                    g_first := g_turn;
                    IF settings <> '{}' THEN
                        g_n := array_fill((settings -> g_name[1] ->> 'n')::bigint, ARRAY[cardinality(g_key)]);
                    END IF;
                ELSE
                    SELECT
                        array_agg(gate.state), array_agg(gate.open_at), array_agg(gate.n), array_agg(gate.per),
                        array_agg(gate.how), array_agg(gate.burst), array_agg(gate.is_set), array_agg(gate.turn),
                        array_agg(gate.first),
                        bool_or(gate.kind = 'scope' AND coalesce((gate.state::jsonb ->> 'until')::bigint, 0) <> 0)
                    INTO g_state, g_open, g_n, g_per, g_how, g_burst, g_set, g_turn, g_first, is_odd
                    FROM (
                        SELECT
                            wanted.kind, gate.state, "winch".micros(gate.open_at) AS open_at, wanted.spec IS NOT NULL AS is_set,
                            CASE WHEN wanted.spec IS NULL THEN wanted.n ELSE (wanted.spec ->> 'n')::bigint END AS n,
                            CASE WHEN wanted.spec IS NULL THEN wanted.per
                                ELSE coalesce((wanted.spec ->> 'per')::bigint, 0) END AS per,
                            CASE WHEN wanted.spec IS NULL THEN wanted.how
                                ELSE coalesce(wanted.spec ->> 'how', 'sliding') END AS how,
                            CASE WHEN wanted.spec IS NULL THEN wanted.burst
                                ELSE coalesce((wanted.spec ->> 'burst')::bigint, 0) END AS burst,
                            CASE wanted.kind WHEN 'fifo' THEN (
                                SELECT permit.job FROM "winch".permit WHERE permit.gate = wanted.key AND permit.token IS NULL
                            ) END AS turn,
                            CASE wanted.kind WHEN 'fifo' THEN (
                                SELECT job.id
                                FROM "winch".job
                                WHERE job.fifo = substr(wanted.key, 6)
                                ORDER BY job.fifo, job.seq, job.id
                                LIMIT 1
                            ) END AS first
                        FROM (
                            SELECT given.*, CASE WHEN settings ? given.name THEN settings -> given.name END AS spec
                            FROM unnest(g_key, g_kind, g_name, g_n, g_per, g_how, g_burst) WITH ORDINALITY
                                AS given (key, kind, name, n, per, how, burst, number)
                        ) AS wanted
                        LEFT JOIN "winch".gate ON gate.key = CASE WHEN wanted.kind IN ('rate', 'scope') THEN wanted.key END
                        ORDER BY wanted.number
                    ) AS gate;
                END IF;
                g_level := array_fill(NULL::double precision, ARRAY[cardinality(g_key)]);
                g_kept := array_fill(NULL::jsonb, ARRAY[cardinality(g_key)]);
                g_took := array_fill(NULL::bigint, ARRAY[cardinality(g_key)]);
                g_least := g_took;
                has_rate := coalesce('rate' = ANY (g_kind), false);
                FOR g IN 1..CASE WHEN has_rate THEN cardinality(g_key) ELSE 0 END LOOP
                    CONTINUE WHEN g_kind[g] <> 'rate';
                    had := "winch".rate_left(g_how[g], g_n[g], g_per[g], g_burst[g], g_state[g], now_us);
                    g_used[g] := had.used;
                    g_level[g] := had.level;
                    g_kept[g] := had.kept;
                    g_took[g] := 0;
                END LOOP;
                IF is_fair THEN
                    turns := (SELECT gate.state::jsonb FROM "winch".gate WHERE gate.key = 'tenants:' || one.queue);
                    virtual := coalesce((turns ->> 'at')::double precision, 0);
                    ends := coalesce(turns -> 'ends', '{}');
                END IF;
            EXCEPTION WHEN data_exception THEN
                is_odd := true;
            END;
            IF is_odd THEN
                go_on := one.number;
                CONTINUE;
            END IF;
            IF one.concurrency IS NOT NULL THEN
                room := greatest(0, least(room, one.concurrency - (
                    SELECT coalesce(sum(permit.weight), 0) FROM "winch".permit WHERE permit.gate = 'queue:' || one.queue
                )));
            END IF;
            -- Which candidates are still there, locked from now on: another claim may have had the gates before, and a job that
            -- something else has locked is left alone. A full join: see above.
            SELECT array_agg(found.place ORDER BY wanted.number) INTO c_place
            FROM unnest(c_id) WITH ORDINALITY AS wanted (id, number)
            FULL JOIN (
                SELECT job.id, job.ctid AS place
                FROM "winch".job
                WHERE job.id = ANY (c_id) AND job.state = 'ready' AND (job.gate IS NOT NULL OR is_ruled)
                FOR UPDATE SKIP LOCKED
            ) AS found ON found.id = wanted.id;

            -- Where the texts have their uses. For free slots only: scopes and slow rates. A slow budget for retries counts only
            -- when the job is retried. A full join: see above.
            IF true = ANY (g_set) THEN
                u_n := ARRAY(
                    SELECT CASE WHEN use.kind <> 'scope' AND g_set[use.gate] THEN g_n[use.gate] ELSE use.n END
                    FROM unnest(u_gate, u_kind, u_n) WITH ORDINALITY AS use (gate, kind, n, place)
                    ORDER BY use.place
                );
            END IF;
            IF is_straight THEN
                t_from := u_text;
                t_to := u_text;
                t_gate := u_text;
                t_scoped := array_fill(false, ARRAY[cardinality(u_text)]);
                t_retried := t_scoped;
                is_simple := true;
            ELSE
                SELECT
                    array_agg(own.first), array_agg(own.last), array_agg(own.is_scoped), array_agg(own.is_retried),
                    array_agg(own.gate), coalesce(bool_and(own.is_simple), true)
                INTO t_from, t_to, t_scoped, t_retried, t_gate, is_simple
                FROM (
                    SELECT
                        given.text,
                        coalesce(min(use.place), 1)::integer AS first,
                        coalesce(max(use.place), 0)::integer AS last,
                        coalesce(bool_or(use.kind = 'scope' OR (use.is_slow AND NOT use.is_for_retries)), false) AS is_scoped,
                        coalesce(bool_or(use.is_slow AND use.is_for_retries), false) AS is_retried,
                        min(use.gate)::integer AS gate,
                        count(use.place) <= 1
                            AND coalesce(bool_and(NOT (use.kind = 'scope' OR use.is_slow OR use.is_for_retries)), true) AS is_simple
                    FROM generate_series(1, cardinality(t_options)) AS given (text)
                    FULL JOIN (
                        SELECT use.*, use.kind = 'rate' AND g_n[use.gate] * 1000000 < 1000 * g_per[use.gate] AS is_slow
                        FROM unnest(u_text, u_gate, u_kind, u_retries) WITH ORDINALITY
                            AS use (text, gate, kind, is_for_retries, place)
                    ) AS use ON use.text = given.text
                    GROUP BY given.text
                    ORDER BY given.text
                ) AS own;
            END IF;
            -- Each job has one gate and the jobs of a gate weigh the same: then sets decide, not one job after the other. How
            -- many jobs each gate has room for: a session that has all it runs at once takes no more of a limit.
            is_simple := is_simple AND NOT is_fair AND NOT is_ruled;
            IF is_simple THEN
                SELECT
                    array_agg(gate.use ORDER BY gate.number), coalesce(bool_and(gate.is_alike), true),
                    array_agg(
                        CASE
                            WHEN gate.n >= g_used[gate.number]
                                AND gate.fits >= by_at_once - least(by_at_once, g_own[gate.number] / gate.weight)
                            THEN room
                            ELSE gate.fits
                        END
                        ORDER BY gate.number
                    )
                INTO g_use, is_simple, g_room
                FROM (
                    SELECT
                        one.*,
                        CASE
                            WHEN g_kind[one.number] = 'limit' THEN greatest(one.n - g_used[one.number], 0) / one.weight
                            WHEN g_kind[one.number] <> 'rate' THEN NULL
                            WHEN g_how[one.number] = 'bucket'
                            THEN floor((g_level[one.number] + 1e-6::double precision) / one.weight)::bigint
                            ELSE greatest(g_n[one.number] - g_used[one.number], 0) / one.weight
                        END AS fits
                    FROM (
                        SELECT
                            use.gate AS number, max(use.place)::integer AS use, min(use.n) AS n,
                            nullif(greatest(min(use.weight), 0), 0) AS weight,
                            min(use.weight) > 0
                                AND min(use.weight) = max(use.weight)
                                AND min(use.n) = max(use.n)
                                AND g_most[use.gate] IN (0, min(use.weight)) AS is_alike
                        FROM unnest(u_gate, u_n, u_weight) WITH ORDINALITY AS use (gate, n, weight, place)
                        GROUP BY use.gate
                    ) AS one
                ) AS gate;
            END IF;
            -- The k-th job of a line is served at the line's own virtual time and k steps, whatever is served before it.
            IF is_fair THEN
                SELECT
                    array_agg(job.tenant), array_agg(job.weight), array_agg(job.is_cut), array_agg(job.first), array_agg(job.last)
                INTO l_tenant, l_weight, l_cut, l_next, l_end
                FROM (
                    SELECT
                        coalesce(min(job.tenant), '') AS tenant, min(job.weight) AS weight,
                        coalesce(count(*) >= min(job.share), false) AS is_cut, min(job.number) AS first, max(job.number) AS last
                    FROM unnest(c_line, c_tenant, c_weight, c_share) WITH ORDINALITY
                        AS job (line, tenant, weight, share, number)
                    GROUP BY job.line
                    ORDER BY job.line
                ) AS job;
                SELECT array_agg(slot.line), array_agg(slot.tag) INTO s_line, s_tag
                FROM (
                    SELECT
                        job.line, job.number,
                        sum(CASE
                            WHEN job.number = l_next[job.line]
                            THEN greatest(virtual, coalesce((ends ->> l_tenant[job.line])::double precision, 0))
                            ELSE 1::double precision / l_weight[job.line]
                        END) OVER (PARTITION BY job.line ORDER BY job.number) AS tag
                    FROM unnest(c_line) WITH ORDINALITY AS job (line, number)
                    ORDER BY tag, line, number
                ) AS slot;
            ELSE
                s_line := c_line;
                l_next := ARRAY[1];
                l_end := ARRAY[cardinality(c_id)];
                l_cut := ARRAY[false];
            END IF;

            drawn := '{}';
            drawn_at := '{}';
            drawn_text := '{}';
            plain_places := '{}';
            g_free := g_turn;
            l_ended := array_fill(NULL::double precision, ARRAY[cardinality(l_next)]);
            IF is_simple AND plain = 0 AND array_position(c_place, NULL) IS NULL AND (
                SELECT bool_and(g_kind[wanted.gate] <> 'fifo' AND wanted.number <= g_room[wanted.gate])
                FROM (SELECT t_gate[text] AS gate, count(*) AS number FROM unnest(c_text[:room]) AS text GROUP BY 1) AS wanted
                WHERE wanted.gate IS NOT NULL
            ) THEN
                -- The gates have room for as many candidates as are wanted.
                drawn := c_id[:room];
                drawn_at := c_place[:room];
                drawn_text := c_text[:room];
                has_room := true;
            ELSE
                has_room := false;
            END IF;
            IF is_simple AND NOT has_room THEN
                WITH asked AS MATERIALIZED (
                    SELECT
                        job.number, job.id, job.text, job.is_plain, job.place AS at, t_gate[job.text] AS gate,
                        row_number() OVER (PARTITION BY t_gate[job.text] ORDER BY job.number) AS place
                    FROM unnest(c_id, c_text, c_plain, c_place) WITH ORDINALITY AS job (id, text, is_plain, place, number)
                    WHERE job.is_plain OR job.place IS NOT NULL
                ),
                judged AS MATERIALIZED (
                    SELECT asked.*, sum(asked.passes::integer) OVER (ORDER BY asked.number) AS drawn
                    FROM (
                        SELECT
                            asked.*,
                            CASE
                                WHEN asked.is_plain OR asked.gate IS NULL THEN true
                                WHEN g_kind[asked.gate] <> 'fifo' THEN asked.place <= g_room[asked.gate]
                                WHEN g_turn[asked.gate] IS NULL AND g_first[asked.gate] IS NULL THEN asked.place = 1
                                ELSE coalesce(g_turn[asked.gate], g_first[asked.gate]) = asked.id
                            END AS passes
                        FROM asked
                    ) AS asked
                )
                SELECT
                    coalesce(array_agg(CASE WHEN NOT is_plain THEN id END)
                        FILTER (WHERE passes AND drawn <= room), '{}'),
                    coalesce(array_agg(CASE WHEN NOT is_plain THEN at END)
                        FILTER (WHERE passes AND drawn <= room), '{}'),
                    coalesce(array_agg(CASE WHEN is_plain THEN 0 ELSE text END)
                        FILTER (WHERE passes AND drawn <= room), '{}'),
                    coalesce(array_agg(drawn) FILTER (WHERE passes AND drawn <= room AND is_plain), '{}'),
                    coalesce(array_agg(id) FILTER (WHERE NOT passes AND drawn < room), '{}'),
                    coalesce(array_agg(gate) FILTER (WHERE NOT passes AND drawn < room), '{}'),
                    count(*) FILTER (WHERE NOT is_plain) < cardinality(c_plain) - plain
                INTO drawn, drawn_at, drawn_text, plain_places, held, held_at, is_again
                FROM (SELECT * FROM judged ORDER BY judged.number) AS judged;
            END IF;
            IF is_simple THEN
                IF has_rate THEN
                    FOR g, number IN
                        SELECT t_gate[text], count(*) FROM unnest(drawn_text) AS text WHERE text > 0 GROUP BY 1
                    LOOP
                        CONTINUE WHEN g_kind[g] <> 'rate';
                        g_took[g] := number * u_weight[g_use[g]];
                        g_used[g] := g_used[g] + g_took[g];
                        g_level[g] := round((g_level[g] - g_took[g])::text::numeric, 6);
                    END LOOP;
                    FOREACH g IN ARRAY ARRAY(SELECT DISTINCT unnest(held_at)) LOOP
                        CONTINUE WHEN g_kind[g] <> 'rate';
                        g_least[g] := coalesce(g_used[g], g_took[g]) + u_weight[g_use[g]];
                        next_at := "winch".rate_opens(
                            g_how[g], g_n[g], g_per[g], g_used[g], g_level[g], g_kept[g], u_weight[g_use[g]], now_us
                        );
                        IF g_open[g] IS NULL OR g_open[g] > next_at THEN
                            g_open[g] := next_at;
                            opens := true;
                        END IF;
                    END LOOP;
                END IF;
                s_line := '{}';
            END IF;
            <<draw>>
            FOR slot IN 1..cardinality(s_line) LOOP
                EXIT WHEN cardinality(drawn) >= room;
                line := s_line[slot];
                LOOP
                    c := l_next[line];
                    IF c > l_end[line] THEN
                        -- Its tenant has more, which were not read: no other tenant goes before those.
                        is_again := is_again OR l_cut[line];
                        EXIT draw WHEN l_cut[line];
                        EXIT;
                    END IF;
                    l_next[line] := c + 1;
                    IF c_plain[c] THEN
                        IF is_ruled THEN
                            is_again := is_again OR c_place[c] IS NULL;
                            CONTINUE WHEN c_place[c] IS NULL;
                            drawn := drawn || c_id[c];
                            drawn_at := drawn_at || c_place[c];
                        ELSE
                            drawn := drawn || NULL::uuid;
                            drawn_at := drawn_at || NULL::tid;
                            plain_places := plain_places || cardinality(drawn)::bigint;
                        END IF;
                        drawn_text := drawn_text || 0;
                    ELSE
                        t := c_text[c];
                        is_scoped := t_scoped[t] OR (t_retried[t] AND c_attempt[c] > 0);
                        IF c_place[c] IS NULL THEN
                            is_again := true;
                            CONTINUE;
                        ELSIF t_from[t] < t_to[t] OR is_scoped THEN
                            -- Several gates: all must have room before something is taken from any of them.
                            CONTINUE WHEN is_scoped AND scoped >= scoped_most;
                            closed := NULL;
                            FOR u IN t_from[t]..t_to[t] LOOP
                                g := u_gate[u];
                                kind := u_kind[u];
                                IF kind = 'limit' THEN
                                    more := u_weight[u];
                                    IF by_at_once IS NOT NULL THEN
                                        more := least(g_own[g] + more, by_at_once * greatest(g_most[g], more))
                                            - least(g_own[g], by_at_once * g_most[g]);
                                    END IF;
                                    has_room := g_used[g] + more <= u_n[u];
                                ELSIF kind = 'fifo' THEN
                                    has_room := coalesce(g_turn[g], g_first[g], c_id[c]) = c_id[c];
                                ELSIF kind = 'rate' THEN
                                    has_room := (u_retries[u] AND c_attempt[c] = 0)
                                        OR CASE WHEN g_how[g] = 'bucket' THEN g_level[g] >= u_weight[u] - 1e-6::double precision
                                            ELSE g_used[g] + u_weight[u] <= g_n[g] END;
                                ELSE
                                    has_room := true; -- a scope that holds nothing
                                END IF;
                                IF NOT has_room THEN
                                    closed := u;
                                    EXIT;
                                END IF;
                            END LOOP;
                            IF closed IS NULL THEN
                                FOR u IN t_from[t]..t_to[t] LOOP
                                    g := u_gate[u];
                                    kind := u_kind[u];
                                    IF kind = 'fifo' THEN
                                        g_turn[g] := c_id[c];
                                    ELSIF kind = 'limit' THEN
                                        more := u_weight[u];
                                        IF by_at_once IS NOT NULL THEN
                                            more := least(g_own[g] + more, by_at_once * greatest(g_most[g], more))
                                                - least(g_own[g], by_at_once * g_most[g]);
                                            g_own[g] := g_own[g] + u_weight[u];
                                            g_most[g] := greatest(g_most[g], u_weight[u]);
                                        END IF;
                                        g_used[g] := g_used[g] + more;
                                    ELSIF kind = 'rate' AND (c_attempt[c] > 0 OR NOT u_retries[u]) THEN
                                        g_used[g] := g_used[g] + u_weight[u];
                                        g_took[g] := g_took[g] + u_weight[u];
                                        g_level[g] := round((g_level[g] - u_weight[u])::text::numeric, 6);
                                    END IF;
                                END LOOP;
                                scoped := scoped + is_scoped::integer;
                            END IF;
                        ELSIF t_from[t] = t_to[t] THEN
                            -- The same for one gate.
                            closed := t_from[t];
                            g := u_gate[closed];
                            kind := u_kind[closed];
                            IF kind = 'limit' THEN
                                more := u_weight[closed];
                                IF by_at_once IS NOT NULL THEN
                                    more := least(g_own[g] + more, by_at_once * greatest(g_most[g], more))
                                        - least(g_own[g], by_at_once * g_most[g]);
                                END IF;
                                IF g_used[g] + more <= u_n[closed] THEN
                                    g_used[g] := g_used[g] + more;
                                    IF by_at_once IS NOT NULL THEN
                                        g_own[g] := g_own[g] + u_weight[closed];
                                        g_most[g] := greatest(g_most[g], u_weight[closed]);
                                    END IF;
                                    closed := NULL;
                                END IF;
                            ELSIF kind = 'fifo' THEN
                                IF coalesce(g_turn[g], g_first[g], c_id[c]) = c_id[c] THEN
                                    g_turn[g] := c_id[c];
                                    closed := NULL;
                                END IF;
                            ELSIF u_retries[closed] AND c_attempt[c] = 0 THEN
                                closed := NULL;
                            ELSIF g_how[g] = 'bucket' THEN
                                IF g_level[g] >= u_weight[closed] - 1e-6::double precision THEN
                                    g_level[g] := round((g_level[g] - u_weight[closed])::text::numeric, 6);
                                    g_took[g] := g_took[g] + u_weight[closed];
                                    closed := NULL;
                                END IF;
                            ELSIF g_used[g] + u_weight[closed] <= g_n[g] THEN
                                g_used[g] := g_used[g] + u_weight[closed];
                                g_took[g] := g_took[g] + u_weight[closed];
                                closed := NULL;
                            END IF;
                        ELSE
                            closed := NULL; -- a tenant alone
                        END IF;
                        IF closed IS NOT NULL THEN
                            held := held || c_id[c];
                            held_at := held_at || g;
                            IF kind = 'rate' AND (
                                g_least[g] IS NULL OR g_least[g] > coalesce(g_used[g], g_took[g]) + u_weight[closed]
                            ) THEN
                                g_least[g] := coalesce(g_used[g], g_took[g]) + u_weight[closed];
                                next_at := "winch".rate_opens(
                                    g_how[g], g_n[g], g_per[g], g_used[g], g_level[g], g_kept[g], u_weight[closed], now_us
                                );
                                IF g_open[g] IS NULL OR g_open[g] > next_at THEN
                                    g_open[g] := next_at;
                                    opens := true;
                                END IF;
                            END IF;
                            CONTINUE;
                        END IF;
                        drawn := drawn || c_id[c];
                        drawn_at := drawn_at || c_place[c];
                        drawn_text := drawn_text || t;
                    END IF;
                    IF is_fair THEN
                        virtual := s_tag[slot];
                        l_ended[line] := virtual + 1::double precision / l_weight[line];
                    END IF;
                    EXIT;
                END LOOP;
            END LOOP;
            is_again := is_again OR (
                cardinality(drawn) < most - got AND cardinality(held) > 0 AND cardinality(c_id) >= most - got + ahead
            );

            -- What the gates remember from now on.
            IF is_fair OR has_rate THEN
                UPDATE "winch".gate
                SET state = new.state, open_at = to_timestamp(new.open_at / 1000000.0)
                FROM (
                    SELECT
                        wanted.key, wanted.open_at,
                        CASE
                            WHEN wanted.took = 0 THEN wanted.state
                            ELSE "winch".rate_state(
                                wanted.how, wanted.per, wanted.used, wanted.level, wanted.kept, wanted.took, now_us
                            )
                        END AS state
                    FROM unnest(g_key, g_kind, g_state, g_open, g_how, g_per, g_used, g_level, g_kept, g_took, g_least)
                        AS wanted (key, kind, state, open_at, how, per, used, level, kept, took, least)
                    WHERE wanted.kind = 'rate' AND (wanted.took > 0 OR wanted.least IS NOT NULL)
                    UNION ALL
                    SELECT 'tenants:' || one.queue, NULL, "winch".turns_after(ends, l_tenant, l_ended, virtual)
                    WHERE is_fair
                ) AS new
                WHERE gate.key = new.key;
            END IF;
        END decide;
        -- A claim without a free slot blocks nothing: mostly the jobs of its own worker hold the gates.
        IF cardinality(held) > 0 AND (ahead > 0 OR within IS NOT NULL) THEN
            -- An end that returns permits beside this claim does not see the jobs that it blocks. So it waits for such
            -- ends, and a job whose gate they have opened stays ready.
            keys := ARRAY(SELECT DISTINCT g_key[at] FROM unnest(held_at) AS at WHERE g_kind[at] = 'limit');
            IF cardinality(keys) > 0 AND within IS NULL THEN
                PERFORM "winch".lock_gates(keys, 'open');
                keys := ARRAY(
                    SELECT g_key[at]
                    FROM (SELECT DISTINCT unnest(held_at) AS at) AS closed
                    WHERE g_kind[at] = 'limit'
                        AND g_permits[at] <> (SELECT count(*) FROM "winch".permit WHERE permit.gate = g_key[at])
                );
                is_again := is_again OR cardinality(keys) > 0;
            ELSE
                keys := '{}';
            END IF;
            UPDATE "winch".job
            SET state = 'blocked', filed = 'blocked', gate = waits.gate
            FROM (SELECT id, g_key[at] AS gate FROM unnest(held, held_at) AS waits (id, at)) AS waits
            WHERE job.id = waits.id AND waits.gate <> ALL (keys);
        END IF;

        -- What is taken.
        is_placed := is_fair OR one.is_strict;
        taken := CASE WHEN cardinality(plain_places) = 0 THEN drawn ELSE array_remove(drawn, NULL) END;
        IF cardinality(taken) > 0 THEN
            -- Without ON CONFLICT, which takes longer than the rest of the insert: nothing is there, unless a trigger was off.
            FOR try IN 1..CASE WHEN cardinality(u_text) > 0 OR one.concurrency IS NOT NULL THEN 2 ELSE 0 END LOOP
                BEGIN
                    INSERT INTO "winch".permit (gate, job, token, weight, session, at_once)
                    SELECT
                        g_key[u_gate[use]], given.job, CASE u_kind[use] WHEN 'limit' THEN by_token END,
                        CASE u_kind[use] WHEN 'limit' THEN u_weight[use] ELSE 0 END, by_session,
                        CASE u_kind[use] WHEN 'limit' THEN by_at_once END
                    FROM unnest(drawn, drawn_text) AS given (job, text)
                    CROSS JOIN LATERAL generate_series(t_from[given.text], t_to[given.text]) AS use
                    WHERE u_kind[use] = 'limit' OR (u_kind[use] = 'fifo' AND g_free[u_gate[use]] IS NULL)
                    UNION ALL
                    SELECT 'queue:' || one.queue, job, by_token, 1, by_session, NULL
                    FROM unnest(taken) AS job
                    WHERE one.concurrency IS NOT NULL;
                    EXIT;
                EXCEPTION WHEN unique_violation THEN
                    DELETE FROM "winch".permit WHERE permit.job = ANY (taken) AND permit.token IS NOT NULL;
                END;
            END LOOP;
            -- By the hundred, as plain jobs: no index is written to. A rule may change what the indexes have.
            is_batch := cardinality(taken) >= batch_from AND NOT is_ruled;
            IF is_batch THEN
                PERFORM "winch".add_lease(by_token, by_session, at, taken);
            END IF;
            RETURN QUERY
            UPDATE "winch".job
            SET state = 'running',
                filed = CASE WHEN is_batch THEN job.filed ELSE 'running' END,
                gate = CASE WHEN one.concurrency IS NULL THEN job.gate ELSE 'queue' END,
                attempt = least(job.attempt, 2147483646) + 1, -- as claim does
                fence = greatest(job.fence + 1, now_us),
                token = by_token,
                session = by_session,
                claimed_at = at,
                progress = NULL,
                log = NULL
            FROM unnest(drawn_at) WITH ORDINALITY AS chosen (tuple, place)
            WHERE job.ctid = chosen.tuple
            RETURNING
                CASE WHEN is_placed THEN chosen.place ELSE job.sort_key END,
                one.concurrency IS NOT NULL, NULL::integer, false, job.id::text, job.queue, job.task, job.args, job.attempt, job.fence, job.created_at, job.run_at,
                job.claimed_at, job.version, job.is_suspect, job.expires_at, job.headers, job.options, job.checkpoint;
            got := got + cardinality(taken);
        END IF;
        IF cardinality(plain_places) > 0 THEN
            RETURN QUERY
            SELECT
                CASE WHEN is_placed THEN plain_places[row_number() OVER (ORDER BY job.sort_key, job.id)] ELSE job.sort_key END,
                false, NULL::integer, false, job.id::text, job.queue, job.task, job.args, job.attempt, job.fence, job.created_at, job.run_at,
                job.claimed_at, job.version, job.is_suspect, job.expires_at, job.headers, job.options, job.checkpoint
            FROM "winch".take_plain(
                one.queue, by_session, by_token, known, cardinality(plain_places)::bigint, batch_from, at
            ) AS job;
            GET DIAGNOSTICS number = ROW_COUNT;
            got := got + number;
        END IF;
        IF is_again AND got < most AND ahead > 0 THEN
            go_on := one.number;
        END IF;
    END LOOP;
    IF opens THEN
        PERFORM "winch".ring(NULL, true);
    END IF;
    place := scoped;
    has_permit := is_any;
    rest := go_on;
    is_rare := is_odd;
    RETURN NEXT;
END
function winch.complete_gated(uuid[],uuid[],jsonb,text,timestamp with time zone,boolean): returns record enable_bitmapscan=off, enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan 

DECLARE
    at timestamptz;
    usual date;
    opened text[];
    numbers bigint[];
    has_breaker boolean;
    setting text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    SELECT array_agg(DISTINCT held.gate) FILTER (WHERE held.gate IS NOT NULL), bool_or(held.has_breaker)
    INTO keys, has_breaker
    FROM (
        SELECT permit.gate::text, false AS has_breaker FROM "winch".permit WHERE permit.job = ANY (ids)
        UNION ALL
        SELECT 'fifo:' || job.fifo, position('"breaker":' IN job.options) > 0 FROM "winch".job WHERE job.id = ANY (ids)
    ) AS held;
    IF has_breaker THEN
        RETURN;
    END IF;
    setting := set_config('lock_timeout', '4s', true) || set_config('winch.completes', 'on', true);
    IF keys IS NOT NULL THEN
        -- Where all gates are limits and nothing is claimed under these locks, a claim need not wait.
        setting := "winch".lock_gates(keys, CASE
            WHEN opens_turns AND NOT EXISTS (SELECT FROM unnest(keys) AS key WHERE NOT starts_with(key, 'limit:'))
            THEN 'return'
            ELSE 'open'
        END);
    END IF;
    at := coalesce(given, clock_timestamp());
    usual := "winch".drop_on('completed', NULL, at);
    WITH gone AS (
        DELETE FROM "winch".job
        WHERE job.id = ANY (ids)
            AND (job.id, job.token) IN (
                SELECT outcome.job, outcome.by_token FROM unnest(ids, tokens) AS outcome (job, by_token)
            )
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
            CASE WHEN keep_seconds IS NULL THEN usual ELSE "winch".drop_on('completed', keep_seconds, at) END,
            is_suspect, is_given_id, 'completed', queue, task, args, session, token, claimed_at, expires_at,
            cancel_requested_at, keep_seconds, max_attempts, tenant, fifo, seq, unique_key, tags, headers, options,
            progress, checkpoint, log, history,
            CASE WHEN results IS NULL THEN complete_gated.result ELSE results ->> id::text END, NULL
        FROM gone
    )
    SELECT coalesce(array_agg(gone.id), '{}'), array_agg(DISTINCT gone.fifo) FILTER (WHERE gone.fifo IS NOT NULL)
    INTO ended, turns
    FROM gone;
    -- The triggers of the delete have run, and let its jobs pass.
    setting := set_config('winch.completes', 'off', true);
    IF cardinality(ended) = 0 THEN
        RETURN;
    END IF;
    -- As finish does: where the whole call took, and it is no call for a few jobs.
    IF cardinality(ended) >= 16 AND cardinality(ended) = cardinality(ids) THEN
        UPDATE "winch".lease
        SET unended = lease.unended - counted.number
        FROM (SELECT by_token, count(*) AS number FROM unnest(tokens) AS by_token GROUP BY by_token) AS counted
        WHERE lease.token = counted.by_token;
    END IF;
    WITH freed AS (
        DELETE FROM "winch".permit WHERE permit.job = ANY (ended) RETURNING permit.gate, permit.weight
    )
    SELECT array_agg(opens.gate), array_agg(opens.number) INTO opened, numbers
    FROM (
        SELECT freed.gate::text AS gate, sum(greatest(freed.weight, 1))::bigint AS number
        FROM freed
        WHERE NOT starts_with(freed.gate, 'fifo:')
        GROUP BY freed.gate
        UNION ALL
        SELECT 'fifo:' || fifo, 1 FROM unnest(turns) AS fifo WHERE opens_turns
    ) AS opens;
    IF opened IS NOT NULL THEN
        -- A FIFO key whose last member has ended leaves nothing behind. admit.tidy removes other gates.
        IF "winch".open_gates(opened, numbers) < cardinality(opened) THEN
            -- By the keys that were given: those in the table have a collation that the index of members has not.
            DELETE FROM "winch".gate
            WHERE gate.key = ANY (ARRAY(
                SELECT ended.key
                FROM unnest(opened) AS ended (key)
                WHERE starts_with(ended.key, 'fifo:')
                    AND (
                        SELECT job.id
                        FROM "winch".job
                        WHERE job.fifo = substr(ended.key, 6)
                        ORDER BY job.fifo, job.seq, job.id
                        LIMIT 1
                    ) IS NULL
            ));
        END IF;
    END IF;
END
function winch.draw_turns(text,uuid[],tid[],boolean[],text[],bigint[],bigint): returns record enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan 

DECLARE
    turns jsonb;
    ends jsonb;
    virtual double precision;
    l_tenant text[];
    l_first bigint[];
    l_last bigint[];
    l_weight bigint[];
    l_ended double precision[];
    s_number bigint[];
    s_line bigint[];
    s_tag double precision[];
BEGIN
    turns := (SELECT gate.state::jsonb FROM "winch".gate WHERE gate.key = 'tenants:' || wanted);
    ends := coalesce(turns -> 'ends', '{}');
    virtual := coalesce((turns ->> 'at')::double precision, 0);
    SELECT array_agg(line.tenant), array_agg(line.first), array_agg(line.last), array_agg(line.weight)
    INTO l_tenant, l_first, l_last, l_weight
    FROM (
        SELECT coalesce(job.tenant, '') AS tenant, min(job.number) AS first, max(job.number) AS last, min(job.weight) AS weight
        FROM unnest(tenants, weights) WITH ORDINALITY AS job (tenant, weight, number)
        GROUP BY coalesce(job.tenant, '')
        ORDER BY first
    ) AS line;
    SELECT array_agg(slot.number), array_agg(slot.line), array_agg(slot.tag)
    INTO s_number, s_line, s_tag
    FROM (
        SELECT
            job.number, line.line,
            sum(CASE
                WHEN job.number = line.first THEN greatest(virtual, coalesce((ends ->> line.tenant)::double precision, 0))
                ELSE 1::double precision / line.weight
            END) OVER (PARTITION BY line.line ORDER BY job.number) AS tag
        FROM unnest(l_tenant, l_first, l_last, l_weight) WITH ORDINALITY AS line (tenant, first, last, weight, line)
        CROSS JOIN LATERAL generate_series(line.first, line.last) AS job (number)
        ORDER BY tag, line, number
        LIMIT most
    ) AS slot;
    SELECT
        array_agg(CASE WHEN NOT are_plain[slot.number] THEN ids[slot.number] END),
        array_agg(CASE WHEN NOT are_plain[slot.number] THEN places[slot.number] END),
        coalesce(array_agg(slot.place) FILTER (WHERE are_plain[slot.number]), '{}')
    INTO drawn, drawn_at, plain_places
    FROM unnest(s_number) WITH ORDINALITY AS slot (number, place);
    -- By their places: a job that was changed since is somewhere else.
    IF (
        SELECT count(*)
        FROM (
            SELECT
            FROM unnest(drawn, drawn_at) AS chosen (id, place)
            JOIN "winch".job ON job.ctid = chosen.place AND job.id = chosen.id AND job.state = 'ready'
            FOR UPDATE OF job SKIP LOCKED
        ) AS locked
    ) < cardinality(drawn) - cardinality(plain_places) THEN
        drawn := NULL;
        RETURN;
    END IF;
    virtual := s_tag[cardinality(s_tag)];
    l_ended := ARRAY(
        SELECT max(slot.tag) + 1::double precision / l_weight[line]
        FROM generate_subscripts(l_weight, 1) AS line
        LEFT JOIN unnest(s_line, s_tag) AS slot (line, tag) USING (line)
        GROUP BY line
        ORDER BY line
    );
    UPDATE "winch".gate
    SET state = "winch".turns_after(ends, l_tenant, l_ended, virtual)
    WHERE gate.key = 'tenants:' || wanted;
EXCEPTION WHEN data_exception THEN
    drawn := NULL; -- its state was damaged by hand
END
function winch.drop_on(text,double precision,timestamp with time zone): returns date immutable
function winch.entry(text,timestamp with time zone,integer,uuid,uuid,timestamp with time zone,jsonb,text): returns jsonb stable
function winch.fingerprint(text,text): returns text stable
function winch.finish_members(uuid[],uuid[],jsonb,text,uuid,uuid,text[],text[],bigint,bigint,bigint,timestamp with time zone): returns TABLE(took text[], sort_key bigint, id text, queue text, task text, args text, attempt integer, fence bigint, created_at timestamp with time zone, run_at timestamp with time zone, claimed_at timestamp with time zone, version integer, is_suspect boolean, expires_at timestamp with time zone, headers text, options text, checkpoint text) enable_bitmapscan=off, enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan 

#variable_conflict use_column
DECLARE
    limits text[];
    done record;
    number bigint;
    woken text[];
    setting text;
BEGIN
    PERFORM FROM "winch".session WHERE id = by_session AND ended_at IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        most := 0;
    END IF;
    -- No worker is woken before it is known what is taken here.
    setting := set_config('winch.claims', 'limits', true) || set_config('winch.opened', '{}', true);
    done := "winch".complete_gated(ids, tokens, results, result, given, false);
    setting := set_config('winch.claims', 'off', true);
    IF done.ended IS NULL THEN
        RETURN;
    END IF;
    took := done.ended::text[];
    RETURN NEXT;
    IF done.turns IS NOT NULL THEN
        RETURN QUERY
        SELECT
            NULL::text[], job.sort_key, job.id::text, job.queue, job.task, job.args, job.attempt, job.fence, job.created_at, job.run_at,
            job.claimed_at, job.version, job.is_suspect, job.expires_at, job.headers, job.options, job.checkpoint
        FROM "winch".next_members(
            done.turns, by_session, by_token, served, known, most, coalesce(given, clock_timestamp()), batch_from
        ) AS job;
        GET DIAGNOSTICS number = ROW_COUNT;
        most := most - number;
    END IF;
    limits := ARRAY(SELECT key FROM unnest(done.keys) AS key WHERE starts_with(key, 'limit:'));
    IF most > 0 AND cardinality(limits) > 0 AND cardinality(done.ended) > 0 THEN
        RETURN QUERY
        SELECT
            NULL::text[], job.place, job.id, job.queue, job.task, job.args, job.attempt, job.fence, job.created_at, job.run_at,
            job.claimed_at, job.version, job.is_suspect, job.expires_at, job.headers, job.options, job.checkpoint
        FROM "winch".claim_gated(
            served, by_session, by_token, known, most, 0, by_at_once, 0, 0, batch_from, given, limits
        ) AS job
        WHERE job.id IS NOT NULL;
    END IF;
    woken := ARRAY(
        SELECT DISTINCT job.queue
        FROM "winch".job
        WHERE job.id = ANY (current_setting('winch.opened')::uuid[]) AND job.state = 'ready'
    );
    IF cardinality(woken) > 0 THEN
        PERFORM "winch".ring(woken, false);
    END IF;
END
function winch.free_key(): returns trigger 

BEGIN
    DELETE FROM "winch".unique_key WHERE key = OLD.unique_key AND job = OLD.id;
    RETURN NULL;
END
function winch.gate_used(text): returns bigint stable
function winch.gate_uses(text[]): returns TABLE(number bigint, place bigint, key text, kind text, name text, n bigint, per bigint, how text, burst bigint, weight bigint, is_for_retries boolean) immutable 

#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT
        given.number, use.place, use.key, use.kind, coalesce(use.name, ''), coalesce(use.n, 0), coalesce(use.per, 0),
        coalesce(use.how, 'sliding'), coalesce(use.burst, 0), coalesce(use.weight, 1), coalesce(use.is_for_retries, false)
    FROM unnest(texts) WITH ORDINALITY AS given (options, number)
    CROSS JOIN LATERAL ROWS FROM (
        jsonb_to_recordset(given.options::jsonb -> 'gates') AS (
            key text, kind text, name text, n bigint, per bigint, how text, burst bigint, weight bigint,
            is_for_retries boolean
        )
    ) WITH ORDINALITY AS use (key, kind, name, n, per, how, burst, weight, is_for_retries, place)
    WHERE starts_with(given.options, '{"gates":');
END
function winch.grown(jsonb,jsonb): returns jsonb immutable
function winch.hand_over(): returns trigger security definer search_path=pg_catalog, pg_temp 

DECLARE
    taken "winch".offer;
    room record;
    has_room boolean := NEW.gate IS NULL;
    word json;
BEGIN
    NEW.fence := 0;
    IF NOT has_room AND EXISTS (
        SELECT
        FROM "winch".offer
        WHERE offer.queue = NEW.queue
            AND offer.until > clock_timestamp()
            AND (offer.tasks IS NULL OR NEW.task = ANY (offer.tasks))
    ) THEN
        room := "winch".room_at_gate(NEW);
        has_room := room.key IS NOT NULL;
    END IF;
    DELETE FROM "winch".offer
    WHERE ctid = (
        SELECT offer.ctid
        FROM "winch".offer
        JOIN "winch".session ON session.id = offer.session AND session.ended_at IS NULL
        WHERE offer.queue = NEW.queue
            AND offer.until > clock_timestamp()
            AND (offer.tasks IS NULL OR NEW.task = ANY (offer.tasks))
            AND NEW.state = 'ready'
            AND has_room
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
    IF NEW.gate IS NULL THEN
        word := json_build_array(taken.token, NEW.id, NEW.queue, NEW.task, NEW.args, NEW.version, NEW.fence);
    ELSE
        -- As claim_gated has it. Without `at_once` the permit counts in full.
        INSERT INTO "winch".permit (gate, job, token, weight, session)
        VALUES (
            room.key, NEW.id, CASE WHEN room.weight > 0 THEN taken.token END, room.weight, taken.session
        );
        word := json_build_array(
            taken.token, NEW.id, NEW.queue, NEW.task, NEW.args, NEW.version, NEW.fence, NEW.options
        );
    END IF;
    -- A notification has room for 8,000 bytes. The worker looks up what it does not receive.
    PERFORM pg_notify(
        taken.channel,
        CASE WHEN octet_length(word::text) > 7900 THEN json_build_array(taken.token)::text ELSE word::text END
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
    opened text[];
    numbers bigint[];
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
    WITH freed AS (
        DELETE FROM "winch".permit
        WHERE job = OLD.id
            AND (token = OLD.token OR (is_gone AND NOT (keeps_turn AND token IS NULL)))
        RETURNING gate, weight
    )
    SELECT array_agg(gate::text), array_agg(greatest(weight, 1)::bigint) INTO opened, numbers FROM freed;
    IF is_gone AND OLD.fifo IS NOT NULL AND NOT keeps_turn AND ('fifo:' || OLD.fifo = ANY (opened)) IS NOT TRUE THEN
        opened := opened || ('fifo:' || OLD.fifo);
        numbers := numbers || 1::bigint;
    END IF;
    IF opened IS NOT NULL THEN
        PERFORM "winch".open_gates(opened, numbers);
    END IF;
    RETURN NULL;
END
function winch.lock_gates(text[],text): returns integer enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan 

DECLARE
    wanted integer := cardinality(keys);
    locked integer;
    setting text;
BEGIN
    -- A client that is stopped before it commits must not hold gates for long: the server ends its transaction.
    setting := set_config('idle_in_transaction_session_timeout', '2s', true);
    LOOP
        CASE purpose
            WHEN 'take' THEN
                PERFORM FROM "winch".gate WHERE key = ANY (keys) ORDER BY key FOR NO KEY UPDATE;
            WHEN 'return' THEN
                PERFORM FROM "winch".gate WHERE key = ANY (keys) ORDER BY key FOR KEY SHARE;
            ELSE
                PERFORM FROM "winch".gate WHERE key = ANY (keys) ORDER BY key FOR UPDATE;
        END CASE;
        GET DIAGNOSTICS locked = ROW_COUNT;
        EXIT WHEN locked >= wanted;
        wanted := (SELECT count(DISTINCT key) FROM unnest(keys) AS key); -- some may be named twice
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
function winch.next_members(text[],uuid,uuid,text[],text[],bigint,timestamp with time zone,bigint): returns SETOF winch.job enable_bitmapscan=off, enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan 

#variable_conflict use_column
DECLARE
    h_id uuid[];
    h_queue text[];
    h_sort bigint[];
    h_fit boolean[]; -- NULL: this worker's claims do not see it
    empty text[];
    fit uuid[];
    chosen uuid[] := '{}';
    served_queue text;
    is_paused boolean;
    is_ruled boolean;
    first_sort bigint;
    first_id uuid;
    is_batch boolean;
    number integer := 0;
    woken text[];
BEGIN
    -- One gate is one `kind`; text that was damaged by hand is not read as JSON. Turns are read in the order of their index:
    -- such a scan marks entries of turns that are gone, and the next one passes over them.
    WITH member AS MATERIALIZED (
        SELECT
            wanted.key, first.id, first.queue, first.sort_key,
            first.tenant IS NULL AND (known IS NULL OR first.task = ANY (known)) AS is_seen,
            length(first.options) - length(replace(first.options, '"kind":', '')) = length('"kind":') AS is_fit,
            (first.state = 'ready' OR (first.state = 'blocked' AND first.gate = 'fifo:' || wanted.key))
                AND (
                    SELECT permit.job
                    FROM "winch".permit
                    WHERE permit.gate = 'fifo:' || wanted.key AND permit.token IS NULL
                    ORDER BY permit.gate, permit.job
                    LIMIT 1
                ) IS NULL AS is_head
        FROM unnest(keys) AS wanted (key)
        LEFT JOIN LATERAL (
            SELECT job.id, job.state, job.gate, job.queue, job.task, job.tenant, job.options, job.sort_key
            FROM "winch".job
            WHERE job.fifo = wanted.key
            ORDER BY job.fifo, job.seq, job.id
            LIMIT 1
        ) AS first ON true
    )
    SELECT
        array_agg(member.id) FILTER (WHERE member.is_head), array_agg(member.queue) FILTER (WHERE member.is_head),
        array_agg(member.sort_key) FILTER (WHERE member.is_head),
        array_agg(CASE WHEN member.is_seen THEN member.is_fit END) FILTER (WHERE member.is_head),
        array_agg(member.id) FILTER (WHERE member.is_head AND member.is_seen AND member.is_fit),
        array_agg('fifo:' || member.key) FILTER (WHERE member.id IS NULL)
    INTO h_id, h_queue, h_sort, h_fit, fit, empty
    FROM member;
    IF empty IS NOT NULL THEN
        DELETE FROM "winch".gate
        WHERE gate.key = ANY (empty) AND NOT EXISTS (SELECT FROM "winch".permit WHERE permit.gate = gate.key);
    END IF;
    IF h_id IS NULL THEN
        RETURN;
    END IF;
    fit := coalesce(fit, '{}');
    most := least(most, cardinality(fit));
    FOREACH served_queue IN ARRAY served LOOP
        EXIT WHEN cardinality(chosen) >= most;
        SELECT queue.paused_at IS NOT NULL, queue.concurrency IS NOT NULL OR queue.is_strict
        INTO is_paused, is_ruled
        FROM "winch".queue
        WHERE queue.name = served_queue;
        CONTINUE WHEN is_paused;
        -- A claim reads the settings of a queue. A change of them waits for the session's lock. Between tenants turns
        -- decide, not sort keys: a claim draws them.
        EXIT WHEN is_ruled OR EXISTS (
            SELECT
            FROM "winch".job
            WHERE job.queue = served_queue AND job.filed = 'ready' AND job.state = 'ready' AND job.gate IS NOT NULL
                AND job.tenant IS NOT NULL
        );
        -- The first job that a claim would decide: members are taken up to it, and none of the queues after it.
        SELECT other.sort_key, other.id INTO first_sort, first_id
        FROM (
            (
                SELECT job.sort_key, job.id
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
                SELECT job.sort_key, job.id
                FROM "winch".job
                WHERE job.queue = served_queue
                    AND job.filed = 'ready'
                    AND job.state = 'ready'
                    AND job.gate IS NOT NULL
                    AND job.tenant IS NULL
                    AND (known IS NULL OR job.task = ANY (known))
                    AND job.id NOT IN (SELECT unnest(fit)) -- which is hashed
                ORDER BY job.queue, job.sort_key, job.id
                LIMIT 1
            )
            UNION ALL
            SELECT head.sort_key, head.id
            FROM unnest(h_id, h_queue, h_sort, h_fit) AS head (id, queue, sort_key, is_fit)
            WHERE head.queue = served_queue AND NOT head.is_fit
        ) AS other
        ORDER BY other.sort_key, other.id
        LIMIT 1;
        chosen := chosen || ARRAY(
            SELECT head.id
            FROM unnest(h_id, h_queue, h_sort, h_fit) AS head (id, queue, sort_key, is_fit)
            WHERE head.queue = served_queue
                AND head.is_fit
                AND (first_id IS NULL OR (head.sort_key, head.id) < (first_sort, first_id))
            ORDER BY head.sort_key, head.id
            LIMIT most - cardinality(chosen)
        );
        EXIT WHEN first_id IS NOT NULL;
    END LOOP;
    chosen := ARRAY(
        SELECT job.id
        FROM "winch".job
        WHERE job.id = ANY (chosen)
            AND (
                (job.state = 'ready' AND job.gate IS NOT NULL)
                OR (job.state = 'blocked' AND job.gate = 'fifo:' || job.fifo)
            )
        ORDER BY job.id
        FOR UPDATE SKIP LOCKED
    );
    IF cardinality(chosen) > 0 THEN
        -- By the hundred, as other claims: a member that was ready keeps its place in the indexes.
        is_batch := coalesce(cardinality(chosen) >= batch_from, false);
        IF is_batch THEN
            PERFORM "winch".add_lease(by_token, by_session, at, chosen);
        END IF;
        RETURN QUERY
        WITH taken AS (
            UPDATE "winch".job
            SET state = 'running',
                filed = CASE WHEN is_batch THEN 'ready' ELSE 'running' END,
                gate = '',
                attempt = least(job.attempt, 2147483646) + 1, -- as claim does
                fence = greatest(job.fence + 1, "winch".micros(at)),
                token = by_token,
                session = by_session,
                claimed_at = at,
                progress = NULL,
                log = NULL
            WHERE job.id = ANY (chosen)
            RETURNING job.*
        ),
        granted AS (
            INSERT INTO "winch".permit (gate, job, token, weight)
            SELECT 'fifo:' || taken.fifo, taken.id, NULL, 0 FROM taken -- no member of such a key has its turn
        )
        SELECT * FROM taken;
        GET DIAGNOSTICS number = ROW_COUNT;
    END IF;
    IF number < cardinality(h_id) THEN
        UPDATE "winch".job
        SET state = 'ready', filed = 'ready', gate = ''
        WHERE job.id = ANY (ARRAY(
            SELECT job.id
            FROM "winch".job
            WHERE job.id = ANY (h_id) AND job.state = 'blocked' AND job.gate = 'fifo:' || job.fifo
            ORDER BY job.id
            FOR UPDATE SKIP LOCKED
        ));
        woken := ARRAY(SELECT DISTINCT job.queue FROM "winch".job WHERE job.id = ANY (h_id) AND job.state = 'ready');
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
function winch.open_gates(text[],bigint[]): returns integer enable_bitmapscan=off, enable_seqscan=off, jit=off, plan_cache_mode=force_generic_plan 

DECLARE
    key text;
    has_fifo boolean := false;
    has_queue boolean := false;
    has_other boolean := false;
    heads uuid[] := '{}';
    chosen uuid[] := '{}';
    woken text[];
    setting text;
BEGIN
    FOREACH key IN ARRAY opened LOOP
        has_fifo := has_fifo OR starts_with(key, 'fifo:');
        has_queue := has_queue OR starts_with(key, 'queue:');
        has_other := has_other OR NOT (starts_with(key, 'fifo:') OR starts_with(key, 'queue:'));
    END LOOP;
    IF has_other THEN
        chosen := ARRAY(
            SELECT first.id
            FROM unnest(opened, numbers) AS given (key, most)
            CROSS JOIN LATERAL (
                SELECT job.id
                FROM "winch".job
                WHERE job.filed = 'blocked' AND job.gate = given.key
                ORDER BY job.gate, job.sort_key, job.id
                LIMIT given.most
                FOR UPDATE SKIP LOCKED
            ) AS first
            WHERE NOT starts_with(given.key, 'fifo:') AND NOT starts_with(given.key, 'queue:')
        );
    END IF;
    IF has_fifo THEN
        heads := ARRAY(
            SELECT first.id
            FROM unnest(opened) AS given (key)
            CROSS JOIN LATERAL (
                SELECT job.id, job.state, job.gate
                FROM "winch".job
                WHERE job.fifo = substr(given.key, 6)
                ORDER BY job.fifo, job.seq, job.id
                LIMIT 1
            ) AS first
            WHERE starts_with(given.key, 'fifo:')
                AND first.state = 'blocked'
                AND first.gate = given.key
                AND NOT EXISTS (SELECT FROM "winch".permit WHERE permit.gate = given.key AND permit.token IS NULL)
        );
        IF cardinality(heads) > 0 THEN
            heads := ARRAY(
                SELECT job.id
                FROM "winch".job
                WHERE job.id = ANY (heads) AND job.state = 'blocked' AND job.gate = 'fifo:' || job.fifo
                ORDER BY job.id
                FOR UPDATE SKIP LOCKED
            );
        END IF;
    END IF;
    IF cardinality(chosen) + cardinality(heads) > 0 THEN
        WITH admitted AS (
            UPDATE "winch".job SET state = 'ready', filed = 'ready', gate = '' WHERE id = ANY (chosen || heads)
            RETURNING id, queue
        )
        SELECT array_agg(DISTINCT queue) INTO woken
        FROM admitted
        -- A finish that claims wakes workers itself, for what it does not take.
        WHERE current_setting('winch.claims', true) IS DISTINCT FROM 'on' OR id = ANY (chosen);
        IF current_setting('winch.claims', true) = 'limits' THEN
            setting := set_config('winch.opened', chosen::text, true);
            woken := NULL;
        END IF;
    END IF;
    IF has_queue THEN
        woken := woken || ARRAY(SELECT substr(name, 7) FROM unnest(opened) AS name WHERE starts_with(name, 'queue:'));
    END IF;
    IF cardinality(woken) > 0 THEN
        PERFORM "winch".ring(woken, false);
    END IF;
    RETURN cardinality(chosen) + cardinality(heads);
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
        NULL; -- another session reads the default partition for long; there is time until tomorrow
    END;
    -- Jobs that are still needed leave the partitions that are about to go. No more jobs come into these.
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
                gone := 0; -- another session reads the archive for long (a dump); the next call tries again
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
function winch.rate_left(text,bigint,bigint,bigint,text,bigint): returns record immutable 

DECLARE
    parsed jsonb := coalesce(state, '{}')::jsonb;
    most double precision := CASE WHEN burst = 0 THEN n ELSE burst END;
BEGIN
    CASE how
        WHEN 'fixed' THEN
            used := CASE
                WHEN (parsed ->> 'from')::bigint = at / per * per THEN coalesce((parsed ->> 'used')::bigint, 0)
                ELSE 0
            END;
        WHEN 'bucket' THEN
            level := CASE
                WHEN parsed ->> 'level' IS NULL THEN most
                ELSE least(
                    most,
                    (parsed ->> 'level')::double precision
                        + greatest(0, at - coalesce((parsed ->> 'at')::bigint, 0))::double precision * n / per
                )
            END;
        ELSE
            -- Takes leave in their order: the first that still counts ends that.
            SELECT coalesce(jsonb_agg(take.entry ORDER BY take.place), '[]'), coalesce(sum((take.entry ->> 1)::bigint), 0)
            INTO kept, used
            FROM jsonb_array_elements(parsed -> 'takes') WITH ORDINALITY AS take (entry, place)
            WHERE take.place >= (
                SELECT min(young.place)
                FROM jsonb_array_elements(parsed -> 'takes') WITH ORDINALITY AS young (entry, place)
                WHERE (young.entry ->> 0)::bigint + per > at
            );
    END CASE;
END
function winch.rate_opens(text,bigint,bigint,bigint,double precision,jsonb,bigint,bigint): returns bigint immutable 

BEGIN
    CASE how
        WHEN 'fixed' THEN
            RETURN at / per * per + per;
        WHEN 'bucket' THEN
            RETURN at + least(greatest(1, ceil((weight - level) * per / n)), 3153600000000000)::bigint;
        ELSE
            RETURN coalesce((
                SELECT min(take.moment) + per
                FROM (
                    SELECT
                        (entry ->> 0)::bigint AS moment,
                        sum((entry ->> 1)::bigint) OVER (ORDER BY place) AS gone
                    FROM jsonb_array_elements(kept) WITH ORDINALITY AS take (entry, place)
                ) AS take
                WHERE take.gone >= used + weight - n
            ), at + per);
    END CASE;
END
function winch.rate_state(text,bigint,bigint,double precision,jsonb,bigint,bigint): returns text immutable 

DECLARE
    last jsonb := kept -> -1;
BEGIN
    CASE
        WHEN how = 'fixed' THEN
            RETURN jsonb_build_object('from', at / per * per, 'used', used);
        WHEN how = 'bucket' THEN
            RETURN jsonb_build_object('level', level, 'at', at);
        WHEN took = 0 THEN
            NULL;
        WHEN (last ->> 0)::bigint = at THEN
            kept := jsonb_set(kept, '{-1,1}', to_jsonb((last ->> 1)::bigint + took));
        WHEN jsonb_array_length(kept) >= 256 AND at - (kept -> -2 ->> 0)::bigint < per / 256 THEN
            kept := jsonb_set(kept, '{-1}', jsonb_build_array(at, (last ->> 1)::bigint + took));
        ELSE
            kept := kept || jsonb_build_array(jsonb_build_array(at, took));
    END CASE;
    RETURN jsonb_build_object('takes', kept);
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
function winch.room_at_gate(winch.job): returns record enable_bitmapscan=off, enable_seqscan=off, jit=off, lock_timeout=20ms, plan_cache_mode=force_generic_plan 

#variable_conflict use_column
DECLARE
    uses jsonb := job.options::jsonb -> 'gates';
    use jsonb := uses -> 0;
    wanted text := use ->> 'key';
    most bigint;
    used bigint;
    takes integer := 0;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed'
        OR job.tenant IS NOT NULL
        OR jsonb_array_length(uses) <> 1
        OR NOT (use ->> 'kind' = 'limit' OR (use ->> 'kind' = 'fifo' AND wanted = 'fifo:' || job.fifo))
    THEN
        RETURN;
    END IF;
    PERFORM FROM "winch".gate WHERE gate.key = wanted FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        BEGIN
            INSERT INTO "winch".gate (key) VALUES (wanted) ON CONFLICT DO NOTHING;
        EXCEPTION WHEN lock_not_available THEN
            RETURN;
        END;
        IF NOT FOUND THEN
            RETURN; -- another transaction has the row
        END IF;
    END IF;
    IF use ->> 'kind' = 'fifo' THEN
        IF EXISTS (SELECT FROM "winch".job AS member WHERE member.fifo = job.fifo)
            OR EXISTS (SELECT FROM "winch".permit WHERE permit.gate = wanted AND permit.token IS NULL)
        THEN
            RETURN;
        END IF;
    ELSE
        most := coalesce(
            (SELECT (limit_set.spec::jsonb ->> 'n')::bigint FROM "winch".limit_set WHERE limit_set.name = use ->> 'name'),
            (use ->> 'n')::bigint, 0
        );
        takes := coalesce((use ->> 'weight')::integer, 1);
        -- As gate_used has it, which would be planned anew for each job.
        used := (
            SELECT coalesce(sum(held.used), 0)
            FROM (
                SELECT least(sum(permit.weight), max(permit.at_once)::bigint * max(permit.weight)) AS used
                FROM "winch".permit
                WHERE permit.gate = wanted
                GROUP BY permit.session, permit.at_once
            ) AS held
        );
        IF takes < 1
            OR used + takes > most
            OR EXISTS (SELECT FROM "winch".job AS other WHERE other.filed = 'blocked' AND other.gate = wanted)
        THEN
            RETURN;
        END IF;
    END IF;
    key := wanted;
    weight := takes;
END
function winch.sort_key(timestamp with time zone,integer): returns bigint immutable
function winch.stamp(timestamp with time zone): returns text stable
function winch.still_awaited(text): returns boolean stable 

DECLARE
    awaited text := substring(headers FROM '"winch-awaited":"([^"]*)"');
    flow text := substring(headers FROM '"winch-flow":"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22})"');
BEGIN
    IF starts_with(awaited, 'all:') THEN
        IF EXISTS (SELECT FROM "winch".waiting WHERE key = left(awaited, 34)) THEN
            RETURN true;
        END IF;
    ELSIF awaited ~ '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$' THEN
        IF EXISTS (SELECT FROM "winch".job WHERE id = awaited::uuid) THEN
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
function winch.take_plain(text,uuid,uuid,text[],bigint,bigint,timestamp with time zone): returns SETOF winch.job 

DECLARE
    is_batch boolean := most >= batch_from;
    places tid[];
    chosen uuid[];
BEGIN
    SELECT array_agg(first.place), array_agg(first.id) INTO places, chosen
    FROM (
        SELECT job.ctid AS place, job.id
        FROM "winch".job
        WHERE job.queue = wanted
            AND job.filed = 'ready'
            AND job.gate IS NULL
            AND job.state = 'ready'
            AND (known IS NULL OR job.task = ANY (known))
        ORDER BY job.queue, job.sort_key, job.id
        LIMIT most
        FOR UPDATE SKIP LOCKED
    ) AS first;
    IF chosen IS NULL THEN
        RETURN;
    END IF;
    IF is_batch THEN
        PERFORM "winch".add_lease(by_token, by_session, at, chosen);
    END IF;
    RETURN QUERY
    UPDATE "winch".job
    SET state = 'running',
        filed = CASE WHEN is_batch THEN job.filed ELSE 'running' END,
        attempt = least(job.attempt, 2147483646) + 1,
        fence = greatest(job.fence + 1, "winch".micros(at)),
        token = by_token,
        session = by_session,
        claimed_at = at,
        progress = NULL,
        log = NULL
    WHERE job.ctid = ANY (places)
    RETURNING job.*;
END
function winch.tell_waiting(): returns trigger 

DECLARE
    place integer;
    together text;
BEGIN
    IF current_setting('winch.noted', true) = OLD.headers THEN
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
            PERFORM set_config('winch.noted', OLD.headers, true);
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO "winch".recheck (key) VALUES ('job:' || OLD.id);
    PERFORM "winch".ring(NULL, true);
    RETURN NULL;
END
function winch.turns_after(jsonb,text[],double precision[],double precision): returns text immutable
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
    -- Stored under an offer, or the next member of a FIFO key, which is admitted and claimed: two changes in one row.
    IF NEW.state = 'running' AND (TG_OP = 'INSERT' OR OLD.state = 'blocked') THEN
        INSERT INTO "winch".job_event (job, v, kind, state, attempt, at)
        VALUES (
            job_id, next_v, CASE TG_OP WHEN 'INSERT' THEN 'enqueued' ELSE 'admitted' END, 'ready', NEW.attempt - 1,
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
trigger winch.job.job_is_gone_from_gates: CREATE TRIGGER job_is_gone_from_gates AFTER DELETE ON winch.job FOR EACH ROW WHEN (((old.gate IS NOT NULL) AND ((old.gate <> ''::text) OR (starts_with(old.options, '{"gates":[]'::text) IS NOT TRUE)) AND (current_setting('winch.completes'::text, true) IS DISTINCT FROM 'on'::text))) EXECUTE FUNCTION winch.leave_gates()
trigger winch.job.job_is_handed_over: CREATE TRIGGER job_is_handed_over BEFORE INSERT ON winch.job FOR EACH ROW WHEN ((new.fence < 0)) EXECUTE FUNCTION winch.hand_over()
trigger winch.job.job_is_possible: CREATE TRIGGER job_is_possible AFTER UPDATE ON winch.job FOR EACH ROW WHEN (((new.attempt < 0) OR
        CASE
            WHEN (new.token IS NULL) THEN ((new.filed <> new.state) OR (new.state <> ALL (ARRAY['ready'::text, 'scheduled'::text, 'retrying'::text, 'blocked'::text])))
            ELSE ((new.state <> 'running'::text) OR (new.session IS NULL) OR (new.claimed_at IS NULL))
        END)) EXECUTE FUNCTION winch.refuse_job()
trigger winch.job.job_leaves_gates: CREATE TRIGGER job_leaves_gates AFTER UPDATE ON winch.job FOR EACH ROW WHEN (((old.gate IS NOT NULL) AND (old.state = 'running'::text) AND (new.state <> 'running'::text) AND ((old.gate <> ''::text) OR (starts_with(old.options, '{"gates":[]'::text) IS NOT TRUE)))) EXECUTE FUNCTION winch.leave_gates()
