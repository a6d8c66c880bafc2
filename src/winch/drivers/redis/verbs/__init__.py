"""The verbs of this store, one family per file."""
