"""The verbs on SQLite, one family per file."""
