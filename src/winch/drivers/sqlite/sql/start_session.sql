-- start_session: repeating it changes nothing.
INSERT INTO winch_session (
    id, worker, host, pid, release, queues, tasks, slots, lease, started_at, lease_until, supervisor, labels,
    queue_limits
)
VALUES (
    :id, :worker, :host, :pid, :release, :queues, :tasks, :slots, :lease, :now, :now + :lease, :supervisor,
    :labels, :queue_limits
)
ON CONFLICT (id) DO NOTHING;

-- start_session.declare: a schedule that the session's code defines.
INSERT INTO winch_declaration (session, schedule, definition, timing)
VALUES (:id, :name, :definition, :timing)
ON CONFLICT DO NOTHING;

-- start_session.schedule: the schedule itself; a new one begins now.
INSERT INTO winch_schedule (name, definition, is_code, created_at, last_window)
VALUES (:name, :definition, 1, :now, :now)
ON CONFLICT (name) DO UPDATE
SET definition = excluded.definition
WHERE winch_schedule.is_code;
