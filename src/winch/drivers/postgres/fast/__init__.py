"""Fast paths on PostgreSQL. Each equals a plain path; `WINCH_FAST=off` leaves the plain ones."""
