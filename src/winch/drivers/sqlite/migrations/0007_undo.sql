-- Jobs that have done what must be undone when they are cancelled.

ALTER TABLE winch_job ADD COLUMN has_undo INTEGER NOT NULL DEFAULT 0;
ALTER TABLE winch_archive ADD COLUMN has_undo INTEGER NOT NULL DEFAULT 0;
