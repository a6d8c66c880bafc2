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

-- prune.keys: unique keys whose time is over.
DELETE FROM winch_unique_kept
WHERE until <= :now;
