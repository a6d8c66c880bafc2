-- move_in: a live job of another store, as it was there.
INSERT INTO winch_job (
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, seq, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, attempt, crashes, rescues, is_suspect, fence,
    session, claimed_at, ended_token, cancel_requested_at, progress, checkpoint, log, history, reason, has_undo,
    sort_key, changed_at, gate
)
VALUES (
    :id, :task, :version, :args, :queue, :priority, :created_at, :run_at, :state, :tenant, :fifo, :seq,
    :unique_key, :tags, :headers, :options, :expires_at, :max_attempts, :keep, :attempt, :crashes, :rescues,
    :is_suspect, :fence, :session, :claimed_at, :ended_token, :cancel_requested_at, :progress, :checkpoint, :log,
    :history, :reason, :has_undo, :sort_key, :now, CASE WHEN substr(:options, 1, 9) = '{"gates":' THEN '' END
);

-- move_in.final: a final job of another store.
INSERT INTO winch_archive (
    id, task, version, args, queue, priority, created_at, run_at, state, tenant, fifo, seq, unique_key, tags,
    headers, options, expires_at, max_attempts, keep, attempt, crashes, rescues, is_suspect, fence,
    session, claimed_at, ended_token, cancel_requested_at, progress, checkpoint, log, history, finished_at,
    result, reason, fingerprint, has_undo, drop_at
)
VALUES (
    :id, :task, :version, :args, :queue, :priority, :created_at, :run_at, :state, :tenant, :fifo, :seq,
    :unique_key, :tags, :headers, :options, :expires_at, :max_attempts, :keep, :attempt, :crashes, :rescues,
    :is_suspect, :fence, :session, :claimed_at, :ended_token, :cancel_requested_at, :progress, :checkpoint, :log,
    :history, :finished_at, :result, :reason, :fingerprint, :has_undo, :drop_at
);
