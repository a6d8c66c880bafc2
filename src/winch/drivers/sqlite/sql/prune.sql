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

-- prune.sessions: sessions that ended long ago.
DELETE FROM winch_session
WHERE ended_at <= :before;

-- prune.declarations: what the code of sessions that are gone defined.
DELETE FROM winch_declaration
WHERE session NOT IN (SELECT id FROM winch_session);

-- prune.signals: signals that were taken, or that nobody has waited for, long enough ago.
DELETE FROM winch_signal
WHERE sent_at <= :taken_before
    AND (taken_by IS NOT NULL OR sent_at <= :untaken_before);

-- prune.waiting: what jobs waited for that are not blocked any more.
DELETE FROM winch_waiting
WHERE job NOT IN (SELECT id FROM winch_job WHERE state = 'blocked');

-- prune.keys: unique keys whose time is over.
DELETE FROM winch_unique_kept
WHERE until <= :now;
