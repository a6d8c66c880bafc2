"""Fast paths. Each equals a plain path."""
