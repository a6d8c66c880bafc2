-- prune: deletes final jobs whose keeping time is over, the longest over first.
DELETE FROM winch_archive
WHERE rowid IN (
    SELECT rowid
    FROM winch_archive
    WHERE drop_at <= :now
    ORDER BY drop_at
    LIMIT :limit
)
RETURNING 1;

-- prune.awaited: those among them that say that others wait for them.
SELECT id, headers
FROM (
    SELECT id, headers
    FROM winch_archive
    WHERE drop_at <= :now
    ORDER BY drop_at
    LIMIT :limit
)
WHERE headers <> '{}'
    AND instr(headers, '"winch-awaited"') > 0;

-- prune.needed: which of the given jobs are still needed: its parent is live, a job waits for its key, or a live
-- member of its flow comes after others.
SELECT asked.key
FROM json_each(:asked) AS asked
WHERE EXISTS (SELECT 1 FROM winch_job WHERE id = json_extract(asked.value, '$[0]'))
    OR EXISTS (SELECT 1 FROM winch_waiting WHERE key = json_extract(asked.value, '$[1]'))
    OR EXISTS (
        SELECT 1
        FROM winch_job
        WHERE id >= substr(json_extract(asked.value, '$[2]'), 1, :alike)
            AND id < substr(json_extract(asked.value, '$[2]'), 1, :alike) || '~'
            AND instr(headers, '"winch-inputs"') > 0
            AND instr(headers, json_extract(asked.value, '$[2]')) > 0
    );

-- prune.later: these are looked at again another time.
UPDATE winch_archive
SET drop_at = :later
WHERE id IN (SELECT value FROM json_each(:ids));

-- prune.these: these go.
DELETE FROM winch_archive
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING 1;

-- prune.sessions: sessions that ended long ago.
DELETE FROM winch_session
WHERE ended_at <= :before;

-- prune.declarations: what the code of sessions that are gone defined.
DELETE FROM winch_declaration
WHERE session NOT IN (SELECT id FROM winch_session);

-- prune.signals: signals that were taken, or that no job has waited for, long enough ago.
DELETE FROM winch_signal
WHERE sent_at <= :taken_before
    AND (taken_by IS NOT NULL OR sent_at <= :untaken_before);

-- prune.waiting: what jobs waited for that are not blocked any more.
DELETE FROM winch_waiting
WHERE job NOT IN (SELECT id FROM winch_job WHERE state = 'blocked');

-- prune.keys: unique keys whose time is over.
DELETE FROM winch_unique_kept
WHERE until <= :now;
