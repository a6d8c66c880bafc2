"""The verbs on PostgreSQL, one family per file."""
