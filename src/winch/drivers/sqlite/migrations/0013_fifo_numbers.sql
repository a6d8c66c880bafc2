-- A member of a FIFO key has a number: members run in the order of their numbers, not of time and id, which jobs of
-- one call share or draw at random. A member without one was stored before, and counts by the moment of that.

ALTER TABLE winch_job ADD COLUMN seq INTEGER;
ALTER TABLE winch_archive ADD COLUMN seq INTEGER;

DROP INDEX winch_job_fifo;
-- Serves enqueue, claim and admit: who is first and who is last of a FIFO key.
CREATE INDEX winch_job_fifo ON winch_job (fifo, coalesce(seq, created_at), id) WHERE fifo IS NOT NULL;
