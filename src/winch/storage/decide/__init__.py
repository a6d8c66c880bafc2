"""Decisions made once, for every driver."""
