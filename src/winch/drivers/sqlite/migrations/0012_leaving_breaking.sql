-- Whoever deletes a live job says himself that it is gone (record.awaited), and only where somebody waits for something:
-- a trigger on each deletion cost half of it. A release that leaves it to the trigger would keep flows waiting.

DROP TRIGGER winch_job_awaited;
DROP TRIGGER winch_job_awaited_together;
