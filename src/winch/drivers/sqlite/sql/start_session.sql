-- start_session: repeating it changes nothing.
INSERT INTO winch_session (
    id, worker, host, pid, release, queues, tasks, slots, lease, started_at, lease_until
)
VALUES (
    :id, :worker, :host, :pid, :release, :queues, :tasks, :slots, :lease, :now, :now + :lease
)
ON CONFLICT (id) DO NOTHING;
