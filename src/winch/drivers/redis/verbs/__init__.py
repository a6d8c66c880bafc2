"""The verbs on Redis, one family per file."""
