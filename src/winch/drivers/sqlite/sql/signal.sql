-- signal: keeps a signal until a job takes it. One with the same id changes nothing.
INSERT INTO winch_signal (name, id, payload, sent_at)
VALUES (:name, :id, :payload, :now)
ON CONFLICT DO NOTHING
RETURNING id;

-- signal.recheck: keys to be looked at again, a JSON list.
INSERT INTO winch_recheck (key)
SELECT value FROM json_each(:keys);
