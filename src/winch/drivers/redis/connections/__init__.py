"""Connections to Redis, and what runs on them."""
