"""How idle workers are woken on Redis."""
