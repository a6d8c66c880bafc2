"""How idle workers are woken on SQLite."""
