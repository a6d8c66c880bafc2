-- limits: what is set.
SELECT name, spec, is_live, set_by, set_at
FROM winch_limit;

-- limits.used: how much of each gate is out.
SELECT gate, sum(used)
FROM winch_gate_used
GROUP BY gate
HAVING sum(used) > 0;

-- limits.waiting: how many wait at each gate.
SELECT gate, count(*)
FROM winch_job
WHERE state = 'blocked'
    AND gate > ''
GROUP BY gate;

-- limits.queues: queues with a concurrency.
SELECT name, concurrency
FROM winch_queue
WHERE concurrency IS NOT NULL;
