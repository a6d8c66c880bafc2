"""How idle workers are woken on PostgreSQL."""
