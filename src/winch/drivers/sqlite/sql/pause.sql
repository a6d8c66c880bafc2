-- pause: claims from this queue find nothing until resume.
INSERT INTO winch_queue (name, paused_at, pause_reason)
VALUES (:queue, :now, :reason)
ON CONFLICT (name) DO UPDATE
SET paused_at = excluded.paused_at,
    pause_reason = excluded.pause_reason;
