-- untaken_signals: those that no job has taken, the oldest first.
SELECT name, id, payload
FROM {schema}.signal
WHERE taken_by IS NULL
ORDER BY sent_at, name, id
LIMIT :limit;
