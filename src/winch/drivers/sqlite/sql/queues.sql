-- queues: live jobs of each queue by state.
SELECT queue, state, count(*), min(run_at)
FROM winch_job
GROUP BY queue, state;

-- queues.paused: settings of queues.
SELECT name, paused_at, pause_reason
FROM winch_queue
WHERE paused_at IS NOT NULL;

-- queues.served: how many live sessions serve each queue.
SELECT served.value, count(*)
FROM winch_session, json_each(winch_session.queues) AS served
WHERE winch_session.ended_at IS NULL
GROUP BY served.value;
