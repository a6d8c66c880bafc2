"""How idle workers are woken."""
