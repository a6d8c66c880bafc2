"""Connections to PostgreSQL, and what runs on them."""
