"""Fast paths on SQLite. Each equals a plain path; `WINCH_FAST=off` leaves the plain ones."""
