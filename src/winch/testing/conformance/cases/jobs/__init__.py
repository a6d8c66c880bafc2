"""Cases about one job's life."""
