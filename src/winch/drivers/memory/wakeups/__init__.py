"""How idle workers are woken in memory."""
