"""Fast paths on Redis. Each equals a plain path; `WINCH_FAST=off` leaves the plain ones."""
