"""Connections to SQLite, and what runs on them."""
