-- Jobs that have done what must be undone when they are cancelled. NULL for all others.

ALTER TABLE {schema}.job ADD COLUMN has_undo boolean;
ALTER TABLE {schema}.archive ADD COLUMN has_undo boolean;
