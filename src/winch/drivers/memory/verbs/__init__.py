"""The verbs in memory, one family per file."""
