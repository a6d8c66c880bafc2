-- unblock: blocked -> ready. The keys that were written down to be looked at again.
SELECT seq, key
FROM winch_recheck
ORDER BY seq
LIMIT :limit;

-- unblock.due: jobs whose time to wait is over.
SELECT DISTINCT job
FROM winch_waiting
WHERE until <= :now
LIMIT :limit;

-- unblock.sent: which of these names have a signal that is not taken.
SELECT DISTINCT name
FROM winch_signal
WHERE taken_by IS NULL
    AND name IN (SELECT value FROM json_each(:names));

-- unblock.live: which of these jobs are not final.
SELECT id
FROM winch_job
WHERE id IN (SELECT value FROM json_each(:ids));

-- unblock.together: of which of these none is live; :keys is a JSON list of [key, first id, last id].
SELECT value ->> 0
FROM json_each(:keys)
WHERE NOT EXISTS (
    SELECT 1
    FROM winch_job
    WHERE id BETWEEN value ->> 1 AND value ->> 2
);

-- unblock.dead: which of these jobs are dead.
SELECT id
FROM winch_archive
WHERE id IN (SELECT value FROM json_each(:ids))
    AND state = 'dead';

-- unblock.came: what has come goes; which jobs waited for it, and whether that was enough.
DELETE FROM winch_waiting
WHERE key IN (SELECT value FROM json_each(:keys))
RETURNING job, is_enough;

-- unblock.left: which of these jobs still wait for others. One such is enough to know.
SELECT value
FROM json_each(:ids)
WHERE EXISTS (
    SELECT 1
    FROM winch_waiting
    WHERE job = value
        AND NOT is_enough
);

-- unblock.leave: these jobs wait no more.
DELETE FROM winch_waiting
WHERE job IN (SELECT value FROM json_each(:ids));

-- unblock.done: these keys have been looked at.
DELETE FROM winch_recheck
WHERE seq <= :seq;

-- unblock.next: when the next wait is over.
SELECT min(until)
FROM winch_waiting
WHERE until IS NOT NULL;
