"""Connections, and what runs on them."""
