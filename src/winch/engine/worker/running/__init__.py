"""The ways to run a handler."""
